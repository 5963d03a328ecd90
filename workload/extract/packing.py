"""Which documents share a row: a pure function of their lengths.

A batch is some rows of equal length; a row holds documents back to back, each with a segment of
its own, so that padding is what is left at a row's end. Documents are looked at through a window
over the stream and packed best fit, longest first (Johnson, 1973); the oldest one always
comes along, so that none waits permanently.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

VERSION = 1
"""Of everything that says which documents make a shard; a run is of one alone."""

LANES = 128  # rows are a multiple of what a TPU's vector unit holds
PADDING = 1.05  # a longer row must be worth it: attention's share grows with the length
_TRIED = 2048  # documents by which a length is chosen
_WINDOW = 8  # batches' worth of documents that are looked at together

Row = tuple[int, ...]
"""Documents, by their place in the stream, in the order in which they lie in the row."""
Batch = tuple[Row, ...]


@dataclass(frozen=True)
class Shape:
    """Of a batch: `rows` rows of `length` tokens."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """Places for tokens in a batch."""
        return self.rows * self.length


def batches(lengths: Sequence[int], shape: Shape) -> Iterator[Batch]:
    """Every document once, in batches that hold at most `shape`; all but the last have no empty row.

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
    oldest, *others = waiting
    rows: list[list[int]] = [[] for _ in range(shape.rows)]
    room = [(shape.length, row) for row in range(shape.rows)]  # sorted
    for document in (oldest, *sorted(others, key=lambda one: (-lengths[one], one))):
        place = bisect.bisect_left(room, (lengths[document], -1))
        if place == len(room):
            continue
        left, row = room.pop(place)
        rows[row].append(document)
        bisect.insort(room, (left - lengths[document], row))
    return tuple(tuple(row) for row in rows if row)


def room(lengths: Sequence[int], row: int, batch_tokens: int, divisor: int) -> Shape:
    """A batch of rows of `row` tokens: about `batch_tokens`, and no more rows than documents could fill."""
    rows = min(max(1, batch_tokens // (row * divisor)), -(-len(lengths) // divisor))
    return Shape(rows * divisor, row)


def choose(lengths: Sequence[int], batch_tokens: int, divisor: int = 1) -> Shape:
    """The shortest rows that waste at most 5 %, or those that waste least.

    Args:
        lengths: tokens of each document.
        batch_tokens: that a batch has about room for.
        divisor: of the number of rows: the chips that share a batch.
    """
    longest = max(lengths)
    some = list(lengths[:_TRIED])
    shortest = -(-longest // LANES) * LANES
    found: list[tuple[float, Shape]] = []
    step = max(LANES, shortest // 16 // LANES * LANES)
    for length in range(shortest, 8 * shortest + 1, step):
        shape = room(lengths, length, batch_tokens, divisor)
        if found and shape.tokens > max(batch_tokens, found[0][1].tokens):
            break
        packed = list(batches(some, shape))
        full = packed[:-1] or packed  # the last of a stream is as empty as it is, whatever the shape
        used = sum(lengths[document] for batch in full for row in batch for document in row)
        ratio = sum(len(batch) for batch in full) * length / used
        if ratio <= PADDING:
            return shape
        found.append((ratio, shape))
    return min(found, key=lambda one: one[0])[1]
