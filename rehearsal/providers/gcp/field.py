"""The vocabulary of the type tables: what a property is called on both sides and when it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class Kind(Enum):
    """The shape of a property's value."""

    STRING = auto()
    INT = auto()
    NUMBER = auto()
    BOOL = auto()
    LIST = auto()  # of strings, in order
    SET = auto()  # of strings, order means nothing
    MAP = auto()  # string to string
    LABELS = auto()  # a MAP that is sent together with the provider's default labels
    BLOCK = auto()  # one object (Terraform's list of at most one)
    BLOCKS = auto()  # objects, in order
    BLOCK_SET = auto()  # objects, order means nothing
    ASSET = auto()
    ANY = auto()

    @property
    def zero(self) -> Any:
        """The value that stands for "not set" in outputs, as the official provider fills it in."""
        return _ZEROS.get(self)


_ZEROS: dict[Kind, Any] = {
    Kind.STRING: "",
    Kind.INT: 0,
    Kind.NUMBER: 0,
    Kind.BOOL: False,
    Kind.LIST: [],
    Kind.SET: [],
    Kind.BLOCKS: [],
    Kind.BLOCK_SET: [],
}


class Send(Enum):
    """Conditions under which a property goes into a request's body."""

    NEVER = auto()
    NONEMPTY = auto()  # only if it has a value other than zero
    OWN = auto()  # only if the program gave it
    GIVEN = auto()  # if the program gave it, zero or not, else as NONEMPTY
    ALWAYS = auto()  # with its zero where there is no value


@dataclass(frozen=True)
class Field:
    """A property of a resource type.

    `rest` is its dotted place in Google's JSON (default: the same name; None: not in the JSON).
    `replaces_if`: a change to and from these values replaces the resource, by the provider's code.
    `computed`: where the program gives none, the API's value is kept and is no difference.
    `output`: only the API sets it. `same` compares values that have several spellings. `only`: the one value
    that the stand-in supports. `listed`: Google has a list of one where Pulumi has the element; `single`: the
    other way round. `text`: Google's JSON has the number as a text. `mask`: the name in an update's mask, if
    it isn't the place.
    """

    name: str
    kind: Kind = Kind.STRING
    rest: str | None = ""
    fields: tuple[Field, ...] = ()
    required: bool = False
    replaces: bool = False
    replaces_if: Callable[[Any, Any], bool] | None = None
    computed: bool = False
    output: bool = False
    default: Any = None
    send: Send = Send.NONEMPTY
    send_update: Send | None = None
    same: Callable[[Any, Any], bool] | None = None
    encode: Callable[[Any, Mapping[str, Any]], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    one_of: tuple[str, ...] = ()
    only: Any = None
    conflicts: tuple[str, ...] = ()
    listed: bool = False
    single: bool = False
    text: bool = False
    mask: str = ""

    @property
    def place(self) -> str | None:
        """Return the property's dotted path in Google's JSON; None if it has none."""
        return self.name if self.rest == "" else self.rest

    @property
    def snake(self) -> str:
        """The property as the official provider's messages spell it."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name)
