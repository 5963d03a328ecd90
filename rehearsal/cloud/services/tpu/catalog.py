"""The emulated Cloud TPU's offer: v6e alone, in the zones where Google has it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

# https://cloud.google.com/tpu/docs/v6e: up to 8 chips are one machine, more are machines of 4.
_CHIPS_OF_LARGEST_HOST = 8
_CHIPS_PER_HOST = 4


@dataclass(frozen=True)
class Slice:
    """A slice's type (`v6e-16`) and its topology in chips (`4x4`)."""

    accelerator_type: str
    topology: str

    @cached_property
    def chips(self) -> int:
        """Chips of the whole slice."""
        return int(self.accelerator_type.rpartition("-")[2])

    @cached_property
    def hosts(self) -> int:
        """Machines that it is made of."""
        return 1 if self.chips <= _CHIPS_OF_LARGEST_HOST else self.chips // _CHIPS_PER_HOST

    @property
    def machine_type(self) -> str:
        """The Compute Engine type of each machine."""
        return f"ct6e-standard-{self.chips // self.hosts}t"


SLICES = tuple(
    Slice(accelerator_type, topology)
    for accelerator_type, topology in (
        ("v6e-1", "1x1"),
        ("v6e-4", "2x2"),
        ("v6e-8", "2x4"),
        ("v6e-16", "4x4"),
        ("v6e-32", "4x8"),
        ("v6e-64", "8x8"),
        ("v6e-128", "8x16"),
        ("v6e-256", "16x16"),
    )
)
ACCELERATOR = "V6E"  # AcceleratorConfig.type

# https://cloud.google.com/tpu/docs/regions-zones
ZONES = frozenset(
    {
        "asia-northeast1-b",
        "europe-west4-a",
        "us-central1-ai1a",
        "us-central1-b",
        "us-east1-d",
        "us-east5-a",
        "us-east5-b",
        "us-south1-ai1b",
    }
)

# https://cloud.google.com/tpu/docs/runtimes: the images for v6e.
RUNTIME_VERSIONS = ("v2-alpha-tpuv6e",)

# https://cloud.google.com/tpu/docs/attach-durable-block-storage: what v6e can attach.
DISK_TYPES = frozenset({"hyperdisk-balanced", "hyperdisk-ml"})


def find(accelerator_type: str) -> Slice | None:
    """Return the slice of this type."""
    return next((slice_ for slice_ in SLICES if slice_.accelerator_type == accelerator_type), None)


def find_topology(topology: str) -> Slice | None:
    """Return the slice of this topology."""
    return next((slice_ for slice_ in SLICES if slice_.topology == topology), None)
