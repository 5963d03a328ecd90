"""Facts about GKE as typed values: `facts.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.catalog import SliceType
from infra.core import facts


@dataclass(frozen=True)
class Machine:
    """A machine type with TPU chips; `several`: whether a slice may have more than one."""

    name: str
    chips: int
    several: bool = False

    def carries(self, kind: SliceType) -> bool:
        """Return whether a slice of this size can be built of such machines."""
        return kind.chips == self.chips or (self.several and kind.chips % self.chips == 0)


@dataclass(frozen=True)
class Channel:
    """A release channel: the minor versions 1.`first` to 1.`last`."""

    first: int
    last: int


def _entries(block: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {key: value for key, value in block.items() if isinstance(value, dict)}


_FACTS = facts.of("infra.layers.gke")
MACHINES = tuple(Machine(name, **fields) for name, fields in _entries(_FACTS["machines"]).items())
CHANNELS: Mapping[str, Channel] = {
    name: Channel(**fields) for name, fields in _entries(_FACTS["channels"]).items()
}
CHANNELS_READ: str = _FACTS["channels"]["read"]
MAX_FLEX_START_S: int = _FACTS["cluster"]["max_flex_start_s"]


def machines_for(kind: SliceType) -> tuple[Machine, ...]:
    """Return machines for a slice of this size; the default, with the most chips, is the first."""
    machines = (machine for machine in MACHINES if machine.carries(kind))
    return tuple(sorted(machines, key=lambda machine: -machine.chips))
