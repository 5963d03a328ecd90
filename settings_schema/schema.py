"""Declaration of settings: fields of dataclasses, with meaning, default and rule."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from settings_schema.rules import Rule

T = TypeVar("T")


@dataclass(frozen=True)
class Former:
    """Key that users know, from elsewhere or an earlier version, and that isn't a setting.

    Attributes:
        rule: why it isn't.
        fix: what to write instead.
        present: key that it is called now, whose default isn't what its user meant.
    """

    rule: str
    fix: str
    present: str = ""


def former(kind: type, key: str) -> Former | None:
    """Return the entry of a key in a class's mapping `former`, whatever its case and underscores."""
    entries: Mapping[str, Former] = getattr(kind, "former", {})
    return {plain(name): entry for name, entry in entries.items()}.get(plain(key))


def plain(key: str) -> str:
    """Return a key without case, `_` and `-`."""
    return key.lower().replace("_", "").replace("-", "")


def setting(
    about: str = "",
    *,
    default: Any = MISSING,
    rule: Rule | None = None,
    example: str = "",
    key_rule: Rule | None = None,
    reserved: Collection[str] = (),
    most: int | None = None,
    not_empty: str = "",
    per_environment: bool = False,
) -> Any:
    """Declare a field.

    Args:
        about: its meaning.
        default: without one the field is required.
        rule: of the value, or of each item.
        example: value to show where it is missing.
        key_rule: of a mapping's keys.
        reserved: keys of a mapping that the program sets itself.
        most: largest whole number.
        not_empty: reason why an empty list is refused; by default it is allowed.
        per_environment: the default is a name that two environments of a project can't both have.
    """
    metadata = {
        "about": about, "rule": rule, "example": example, "key_rule": key_rule, "reserved": reserved,
        "most": most, "not_empty": not_empty, "per_environment": per_environment,
    }  # fmt: skip
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def once_a_class(function: Callable[[type], T]) -> Callable[[type], T]:
    """Keep what a function returns for each class."""
    return functools.cache(function)


@once_a_class
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the types of a class's fields."""
    return get_type_hints(kind)


def record_of(hint: Any) -> type | None:
    """Return the class of a list's items where these are mappings, as in `tpu:slices`; else None."""
    element = get_args(hint)[0] if get_origin(hint) is tuple else None
    return element if isinstance(element, type) and is_dataclass(element) else None
