"""Reads and rewrites where a shared object looks for others (ELF64, little-endian).

Layout: System V gABI, chapters 4 and 5 ("Program Header", "Dynamic Section").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Dynamic", "dynamic", "with_search_path"]

_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 15, 29


@dataclass(frozen=True)
class Dynamic:
    """The libraries that an object names, and its search path if it has one."""

    needed: tuple[str, ...]
    search_path: str | None


def dynamic(image: bytes) -> Dynamic | None:
    """Return what the dynamic section says; None for anything but a dynamic ELF64 object."""
    entries = list(_entries(image))
    if not entries:
        return None
    strings = _string_table(image, entries)
    needed = tuple(_string(image, strings + value) for _, tag, value in entries if tag == _DT_NEEDED)
    paths = [_string(image, strings + value) for _, tag, value in entries if tag in (_DT_RPATH, _DT_RUNPATH)]
    return Dynamic(needed, paths[0] if paths else None)


def with_search_path(image: bytes, path: str) -> bytes:
    """Return `image` with its search path replaced by `path`, which may not be longer.

    The entry becomes a DT_RPATH: unlike DT_RUNPATH it also holds for the libraries that
    the object's own libraries need. An object without a search path comes back as it is.
    """
    entries = list(_entries(image))
    changed = bytearray(image)
    for position, tag, value in entries:
        if tag not in (_DT_RPATH, _DT_RUNPATH):
            continue
        start = _string_table(image, entries) + value
        old = _string(image, start).encode()
        new = path.encode()
        if len(new) > len(old):
            raise ValueError(f"a search path of {len(old)} bytes has no room for {path!r}")
        changed[start : start + len(old)] = new.ljust(len(old), b"\0")
        struct.pack_into("<q", changed, position, _DT_RPATH)
    return bytes(changed)


def _segments(image: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield (type, file offset, address, size in the file) of each program header."""
    if image[:6] != _MAGIC:
        return
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    for index in range(count):
        kind, _, offset, address, _, file_size = struct.unpack_from("<IIQQQQ", image, table + index * size)
        yield kind, offset, address, file_size


def _entries(image: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (file offset, tag, value) of each entry of the dynamic section."""
    for kind, offset, _, size in _segments(image):
        if kind != _PT_DYNAMIC:
            continue
        for position in range(offset, offset + size, 16):
            tag, value = struct.unpack_from("<qQ", image, position)
            if tag == _DT_NULL:
                return
            yield position, tag, value


def _string_table(image: bytes, entries: list[tuple[int, int, int]]) -> int:
    """Return the file offset of the dynamic string table, which is named by address."""
    table = next(value for _, tag, value in entries if tag == _DT_STRTAB)
    for kind, offset, address, size in _segments(image):
        if kind == _PT_LOAD and address <= table < address + size:
            return offset + table - address
    raise ValueError("the dynamic string table lies in no loaded segment")


def _string(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode()
