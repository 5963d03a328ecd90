"""Property values: between pulumi's protobuf structs and plain Python.

Pulumi wraps what JSON can't express in marked objects and reserved strings
(sdk/go/common/resource/plugin/rpc.go): unknowns in a preview, secrets, assets.
Here an unknown is `UNKNOWN`, an asset an `Asset`, a secret its bare value: the stand-in
answers `acceptSecrets: false`, so the engine strips secrets before and marks them again after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from rehearsal.providers.plugin.errors import UnsupportedError

_SIGNATURE_KEY = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
_ASSET = "c44067f5952c0a294b673a41bacd8c17"
_UNKNOWN_STRING = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_UNKNOWNS = {
    _UNKNOWN_STRING,
    "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # bool
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
    "030794c1-ac77-496b-92df-f27374a8bd58",  # asset
    "e48ece36-62e2-4504-bad9-02848725956a",  # archive
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
}


class _Unknown(Enum):
    """The one value that a preview doesn't know yet; an enum member so that `is` works everywhere."""

    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown.UNKNOWN


@dataclass(frozen=True)
class Secret:
    """A value that the state must encrypt; for outputs and checked inputs: none comes from the engine."""

    value: Any


@dataclass(frozen=True)
class Asset:
    """A file or a text that a program attached to a resource."""

    text: str | None
    path: str | None
    wire: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The engine's SHA-256 of the bytes, in hex."""
        return str(self.wire.get("hash", ""))

    @property
    def is_here(self) -> bool:
        """True if the bytes can be read: the engine's state keeps only the digest."""
        return self.text is not None or (bool(self.path) and Path(str(self.path)).is_file())

    def read(self) -> bytes:
        """Return the asset's bytes."""
        if self.text is not None:
            return self.text.encode()
        if self.path:
            return Path(self.path).read_bytes()
        raise UnsupportedError("the stand-in doesn't know assets other than files and texts")


def from_struct(struct: Struct) -> dict[str, Any]:
    """Plain Python from a protobuf struct; whole numbers become ints."""
    return {key: _from_wire(value) for key, value in MessageToDict(struct).items()}


def to_struct(values: Mapping[str, Any]) -> Struct:
    """Return a protobuf struct from plain Python; the inverse of `from_struct`."""
    struct = Struct()
    struct.update({key: _to_wire(value) for key, value in values.items()})
    return struct


def has_unknown(value: Any) -> bool:
    """Return True if `value` is unknown or contains an unknown."""
    if isinstance(value, Mapping):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(has_unknown(item) for item in value)
    return value is UNKNOWN


def is_empty(value: Any) -> bool:
    """Return True if the API and Terraform take `value` for "not set": null, "", 0, false, [] or {}."""
    if isinstance(value, Mapping):
        return all(is_empty(item) for key, item in value.items() if key != "__defaults")
    return value in (None, "", 0, False) or value == []


def _from_wire(value: Any) -> Any:
    if isinstance(value, str):
        return UNKNOWN if value in _UNKNOWNS else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_from_wire(item) for item in value]
    if isinstance(value, dict):
        match value.get(_SIGNATURE_KEY):
            case None:
                return {key: _from_wire(item) for key, item in value.items()}
            case signature if signature == _SECRET:
                return _from_wire(value.get("value"))
            case signature if signature == _ASSET:
                return Asset(value.get("text"), value.get("path"), value)
            case signature:
                raise UnsupportedError(
                    f"the stand-in doesn't know values marked {signature} (archives, references)"
                )
    return value


def _to_wire(value: Any) -> Any:
    if value is UNKNOWN:
        return _UNKNOWN_STRING
    if isinstance(value, Asset):
        return dict(value.wire)
    if isinstance(value, Secret):
        return {_SIGNATURE_KEY: _SECRET, "value": _to_wire(value.value)}
    if isinstance(value, Mapping):
        return {key: _to_wire(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_wire(item) for item in value]
    return value
