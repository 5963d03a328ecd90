"""Content of an object in a store: its bytes, whole or in pieces that are written out of their own memory."""

from collections.abc import Sequence

Content = bytes | Sequence[bytes | memoryview]


def pieces(content: Content) -> list[memoryview]:
    """Return views of the pieces, in order."""
    return [memoryview(piece) for piece in ([content] if isinstance(content, bytes) else content)]
