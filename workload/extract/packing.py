"""Packing of documents into rows: a pure function of their lengths.

A batch is some rows of equal length; a row holds documents back to back, each with a segment of its
own, and padding at its end. Documents within a window over the stream are packed best fit, longest
first (Johnson, 1973); each batch includes the oldest one, so that no document waits forever.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workload.model import kernels

VERSION = 2
"""Version of the assignment of documents to shards; a run has one alone."""

LANES = 128  # of a TPU's vector unit, of which rows are a multiple
PADDING = 1.05  # tolerated: longer rows cost more attention
_TRIED = 2048  # documents sampled for the choice of a length
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


def room(lengths: Sequence[int], row: int, batch_tokens: int, divisor: int) -> Shape:
    """Return a batch of rows of `row` tokens: about `batch_tokens`, and no more rows than documents."""
    rows = min(max(1, batch_tokens // (row * divisor)), -(-len(lengths) // divisor))
    return Shape(rows * divisor, row)


def choose(lengths: Sequence[int], batch_tokens: int, divisor: int = 1) -> Shape:
    """Return the shape of the shortest rows that waste at most 5 %, or of those that waste least.

    Where attention would pad these to larger blocks, rows of that length are taken if they waste as little.

    Args:
        lengths: tokens of each document.
        batch_tokens: capacity of a batch, about.
        divisor: of the number of rows: number of chips.
    """
    longest = max(lengths)
    sample = list(lengths[:_TRIED])
    shortest = -(-longest // LANES) * LANES
    candidates: list[tuple[float, Shape]] = []
    step = max(LANES, shortest // 16 // LANES * LANES)
    within: Shape | None = None
    for length in range(shortest, 8 * shortest + 1, step):
        if within and length > kernels.padded(within.length):
            return within
        shape = room(lengths, length, batch_tokens, divisor)
        if candidates and shape.tokens > max(batch_tokens, candidates[0][1].tokens):
            break
        packed = list(batches(sample, shape))
        full = packed[:-1] or packed  # the last batch is partly empty for any shape
        used = sum(lengths[document] for batch in full for row in batch for document in row)
        ratio = sum(len(batch) for batch in full) * length / used
        if ratio <= PADDING and kernels.padded(length) == length:
            return shape
        within = within or (shape if ratio <= PADDING else None)
        candidates.append((ratio, shape))
    return within or min(candidates, key=lambda candidate: candidate[0])[1]
