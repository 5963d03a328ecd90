"""Cuts a stream's batches into ranges, each of which becomes one shard: the same cuts whoever makes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workload.extract.packing import Batch, Shape, batches


@dataclass(frozen=True)
class Range:
    """Some batches of a stream.

    Attributes:
        number: from 1.
        batches: in their order.
        tokens: of all of them.
    """

    number: int
    batches: tuple[Batch, ...]
    tokens: int

    @property
    def documents(self) -> list[int]:
        """By their place in the stream, in the order in which a shard holds them."""
        return [document for batch in self.batches for row in batch for document in row]


def cut(lengths: Sequence[int], shape: Shape, token_bytes: int, shard_bytes: int) -> Iterator[Range]:
    """All ranges of a stream: each the fewest batches that make `shard_bytes`, the last what is left.

    Args:
        lengths: tokens of each document.
        shape: of a batch.
        token_bytes: that a shard holds for a token.
        shard_bytes: of a shard, about.
    """
    some: list[Batch] = []
    tokens, number = 0, 0
    for batch in batches(lengths, shape):
        some.append(batch)
        tokens += sum(lengths[document] for row in batch for document in row)
        if tokens * token_bytes >= shard_bytes:
            number += 1
            yield Range(number, tuple(some), tokens)
            some, tokens = [], 0
    if some:
        yield Range(number + 1, tuple(some), tokens)
