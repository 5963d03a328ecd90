"""Ranges of a stream's batches; each becomes one shard. The cuts are the same on every start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workload.extract.packing import Batch, Shape, batches


@dataclass(frozen=True)
class Range:
    """Consecutive batches of a stream.

    Attributes:
        number: from 1.
        batches: in order.
    """

    number: int
    batches: tuple[Batch, ...]

    @property
    def documents(self) -> list[int]:
        """Indices in the stream, in the order of the shard."""
        return [document for batch in self.batches for row in batch for document in row]


def cut(
    lengths: Sequence[int], kept: Sequence[int], shape: Shape, token_bytes: int, shard_bytes: int
) -> Iterator[Range]:
    """Yield all ranges of a stream: each the fewest batches of `shard_bytes`, the last one the rest.

    Args:
        lengths: tokens of each document.
        kept: tokens of each document to store.
        shape: of a batch.
        token_bytes: of a token in a shard.
        shard_bytes: of a shard, about.
    """
    pending: list[Batch] = []
    stored, number = 0, 0
    for batch in batches(lengths, shape):
        pending.append(batch)
        stored += sum(kept[document] for row in batch for document in row)
        if stored * token_bytes >= shard_bytes:
            number += 1
            yield Range(number, tuple(pending))
            pending, stored = [], 0
    if pending:
        yield Range(number + 1, tuple(pending))
