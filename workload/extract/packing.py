"""Choice of the length of rows and of their number in a batch, from the documents' lengths.

A batch is some rows of equal length; a row holds documents back to back, each with a segment of its
own, and padding at its end (`data/packing.py`).
"""

from collections.abc import Sequence

from workload.data.packing import Batch as Batch
from workload.data.packing import Shape as Shape
from workload.data.packing import batches as batches
from workload.model import kernels

VERSION = 2
"""Version of the assignment of documents to shards; a run has one alone."""

LANES = 128  # of a TPU's vector unit, of which rows are a multiple
PADDING = 1.05  # tolerated: longer rows cost more attention
_TRIED = 2048  # documents sampled for the choice of a length


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
