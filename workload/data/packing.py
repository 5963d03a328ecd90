"""Packing of documents into rows of one length: a pure function of their lengths.

Documents within a window over the stream are packed best fit, longest first (Johnson, 1973); each batch of
rows includes the oldest one, so that no document waits forever.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_WINDOW = 8  # batches' worth of documents packed together

Row = tuple[int, ...]
"""Indices in the stream of a row's documents, in order."""
Batch = tuple[Row, ...]


@dataclass(frozen=True)
class Shape:
    """Shape of a batch: `rows` rows of `length` tokens."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """Capacity of a batch, in tokens."""
        return self.rows * self.length


def batches(lengths: Sequence[int], shape: Shape) -> Iterator[Batch]:
    """Yield every document once, in batches within `shape`; only the last one may have empty rows.

    Args:
        lengths: tokens of each document of the stream; from 1 to `shape.length`.
        shape: of every batch.
    """
    waiting: list[int] = []  # in the order of the stream
    tokens, coming = 0, 0
    while coming < len(lengths) or waiting:
        while coming < len(lengths) and tokens < _WINDOW * shape.tokens:
            waiting.append(coming)
            tokens += lengths[coming]
            coming += 1
        batch = _fill(waiting, lengths, shape)
        yield batch
        taken = {document for row in batch for document in row}
        tokens -= sum(lengths[document] for document in taken)
        waiting = [document for document in waiting if document not in taken]


def _fill(waiting: Sequence[int], lengths: Sequence[int], shape: Shape) -> Batch:
    oldest, *rest = waiting
    rows: list[list[int]] = [[] for _ in range(shape.rows)]
    room = [(shape.length, row) for row in range(shape.rows)]  # sorted
    for document in (oldest, *sorted(rest, key=lambda n: (-lengths[n], n))):
        place = bisect.bisect_left(room, (lengths[document], -1))
        if place == len(room):
            continue
        free, row = room.pop(place)
        rows[row].append(document)
        bisect.insort(room, (free - lengths[document], row))
    return tuple(tuple(row) for row in rows if row)
