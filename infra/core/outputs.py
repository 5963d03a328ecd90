"""What a layer gives to those that read it: one class a layer, the same for who gives and who reads.

    class NetworkOutputs(Outputs):
        network_id: Output[str] = output("`projects/P/global/networks/N`")
        subnet_ids: Mapping[str, Output[str]] = output("its subnet", key="region")

The stack exports it as `networkId` and `subnetIds`. Each value may be unknown in a preview, and secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, dataclass_transform

from infra.errors import InfraError, listed
from infra.settings.spelling import camel_case


class Declared:
    """One output. Where an instance holds no value of it, it asks whom the instance was read from."""

    name: str
    key: str
    """What the stack exports it as."""

    def __init__(self, about: str, per: str, required: bool):
        self.about, self.per, self.required = about, per, required

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.key = name, camel_case(name)

    def __get__(self, one: Outputs | None, owner: type) -> Any:
        if one is None:
            return self
        value = one.__dict__["_read"](self) if "_read" in one.__dict__ else None
        one.__dict__[self.name] = value
        return value


def output(about: str, *, key: str = "", **optional: None) -> Any:
    """A field of an `Outputs`.

    Args:
        about: its meaning, for docs/architecture.md.
        key: what the keys of a mapping are, e.g. "zone".
        optional: `default=None` for one that isn't always given.
    """
    return Declared(about, key, "default" not in optional)


@dataclass_transform(kw_only_default=True, field_specifiers=(output,))
class Outputs:
    """Subclasses declare fields by `output`, and get a constructor that takes them by name."""

    def __init__(self, **given: Any) -> None:
        """Raises InfraError for outputs that are declared and not given, or the other way round."""
        kind = type(self)
        known = declared(kind)
        lacking = [name for name, one in known.items() if one.required and given.get(name) is None]
        wrong = [f"{kind.__name__}.{name} is declared and the program doesn't give it" for name in lacking]
        wrong += [
            f"{kind.__name__}.{name} is given and isn't declared" for name in sorted(given.keys() - known)
        ]
        if wrong:
            raise InfraError(listed("the outputs of a layer", wrong) + "\n    fix: in its class and program")
        self.__dict__.update({name: given.get(name) for name in known})

    def exports(self) -> dict[str, Any]:
        """What the stack exports, by key; an output that isn't given is left out."""
        return {
            one.key: self.__dict__[name]
            for name, one in declared(type(self)).items()
            if self.__dict__[name] is not None
        }


def declared(kind: type[Outputs]) -> Mapping[str, Declared]:
    """The outputs of a class, by field."""
    return {name: one for name, one in vars(kind).items() if isinstance(one, Declared)}


def read_by(kind: type[Outputs], read: Callable[[Declared], Any]) -> Any:
    """An instance whose values are asked for one by one, when they are used."""
    one = kind.__new__(kind)
    one.__dict__["_read"] = read
    return one
