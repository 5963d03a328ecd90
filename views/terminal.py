"""Text for terminals, in which control characters of hosts, files and Google's messages do nothing."""

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# C0 but for tab and line feed, DEL, C1, marks of direction, separators of lines, halves of surrogate pairs.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Remove colours; write other control characters as JSON does, such as \\u001b."""
    plain = _COLOUR.sub("", text).replace("\r\n", "\n")
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)


class Guarded:
    """A stream that cleans its text; `unguarded` is the stream below, for text with styles of our own."""

    def __init__(self, unguarded: TextIO):
        self.unguarded = unguarded

    def write(self, text: str) -> int:
        """Write clean text."""
        self.unguarded.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write clean lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def guard() -> None:
    """Clean whatever this process prints from now on, tracebacks included."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Guarded):
            setattr(sys, name, cast(TextIO, Guarded(stream)))


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream below a guarded one, for text that is clean but for its styles."""
    below: TextIO = getattr(stream, "unguarded", stream)
    return below
