"""Outputs of a layer: one class, used by the layer that exports them and by those that read them.

    class NetworkOutputs(Outputs, layer="network"):
        network_id: Output[str] = output("`projects/P/global/networks/N`")
        subnet_ids: Mapping[str, Output[str]] = output("its subnet", key="region")

The stack exports it as `networkId` and `subnetIds`. Each value may be unknown in a preview, and secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, dataclass_transform

from infra.errors import InfraError, listed
from infra.settings.schema import Settings
from infra.settings.spelling import camel_case


class Declared:
    """An output. An instance without a value of its own reads it by the function of `read_by`."""

    name: str
    key: str
    """Name in the stack's exports."""

    def __init__(self, about: str, per: str, required: bool):
        self.about, self.per, self.required = about, per, required

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.key = name, camel_case(name)

    def __get__(self, outputs: Outputs | None, owner: type) -> Any:
        if outputs is None:
            return self
        value = outputs.__dict__["_read"](self) if "_read" in outputs.__dict__ else None
        outputs.__dict__[self.name] = value
        return value


def output(about: str, *, key: str = "", **optional: None) -> Any:
    """Declare a field of an `Outputs`.

    Args:
        about: its meaning, for docs/internals/architecture.md.
        key: meaning of a mapping's keys, e.g. "zone".
        optional: `default=None` for an output that may be absent.
    """
    return Declared(about, key, "default" not in optional)


@dataclass_transform(kw_only_default=True, field_specifiers=(output,))
class Outputs:
    """Base of all outputs. Subclasses declare fields by `output`, and get a constructor with their names.

    Attributes:
        layer: name of the layer that exports them.
    """

    layer: ClassVar[str]

    def __init_subclass__(cls, *, layer: str) -> None:
        super().__init_subclass__()
        cls.layer = layer

    def __init__(self, **values: Any) -> None:
        """Store all values. Raises InfraError for missing and for undeclared outputs."""
        kind = type(self)
        known = declared(kind)
        missing = [name for name, field in known.items() if field.required and values.get(name) is None]
        problems = [f"{kind.__name__}.{name} is declared and the program doesn't give it" for name in missing]
        problems += [
            f"{kind.__name__}.{name} is given and isn't declared" for name in sorted(values.keys() - known)
        ]
        if problems:
            raise InfraError(
                listed("the outputs of a layer", problems) + "\n    fix: in its class and program"
            )
        self.__dict__.update({name: values.get(name) for name in known})

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, by field, for previews of layers that read them."""
        return {}

    def exports(self) -> dict[str, Any]:
        """Return the stack's exports by key, without absent outputs."""
        return {
            field.key: self.__dict__[name]
            for name, field in declared(type(self)).items()
            if self.__dict__[name] is not None
        }


def declared(kind: type[Outputs]) -> Mapping[str, Declared]:
    """Return the outputs of a class, by field."""
    return {name: field for name, field in vars(kind).items() if isinstance(field, Declared)}


def read_by(kind: type[Outputs], read: Callable[[Declared], Any]) -> Any:
    """Return an instance that reads each value by `read` at its first use."""
    outputs = kind.__new__(kind)
    outputs.__dict__["_read"] = read
    return outputs
