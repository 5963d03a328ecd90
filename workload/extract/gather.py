"""Kept tokens of a stream, and the content of a range's shard from the outputs of the devices."""
# mypy: allow-untyped-calls

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from workload.activations.statistics import Moments
from workload.activations.writer import Content
from workload.data.stream import Stream
from workload.extract.forward import Output
from workload.extract.packing import Batch, Shape
from workload.extract.ranges import Range


class Selection:
    """Tokens of a stream to keep.

    Attributes:
        kept_T: True for each token to keep; None if all are.
        lengths: tokens of each document.
        kept: of them, to keep.
    """

    def __init__(self, stream: Stream, kept_T: NDArray[np.bool_] | None):
        self.stream, self.kept_T = stream, kept_T
        self.lengths = self.kept = stream.lengths()
        if kept_T is not None and len(stream):
            self.kept = np.add.reduceat(kept_T, stream.offsets[:-1], dtype=np.int64).tolist()

    def used(self, batch: Batch, shape: Shape) -> list[int]:
        """Return the tokens kept of each row of a batch, or of each chip's rows where tokens are selected."""
        rows = [sum(self.kept[document] for document in row) for row in batch]
        if self.kept_T is None:
            return rows
        step = shape.rows // jax.local_device_count()
        return [sum(rows[first : first + step]) for first in range(0, shape.rows, step)]

    def most(self, ranges: Sequence[Range], shape: Shape) -> int | None:
        """Return the most tokens that a chip keeps of a batch; None if tokens aren't selected."""
        if self.kept_T is None:
            return None
        return max(used for part in ranges for batch in part.batches for used in self.used(batch, shape))

    def places(self, document: int) -> NDArray[np.int64]:
        """Return the positions of a document's kept tokens."""
        if self.kept_T is None:
            return np.arange(self.lengths[document])
        begin, end = self.stream.offsets[document : document + 2]
        return np.flatnonzero(self.kept_T[begin:end])

    def content(
        self, part: Range, values: dict[str, list[NDArray[Any]]], moments: dict[str, Moments]
    ) -> Content:
        """Return the content of a range's shard, given its tensors."""
        stream, documents = self.stream, part.documents
        places = [self.places(document) for document in documents]
        tokens = [stream.document(n)[kept] for n, kept in zip(documents, places, strict=True)]
        return Content(
            values=values,
            tokens_T=np.concatenate(tokens),
            positions_T=np.concatenate(places).astype(np.int32),
            lengths=[self.kept[document] for document in documents],
            samples=[int(stream.samples_N[document]) for document in documents],
            ids=[stream.ids[document] for document in documents],
            moments=moments,
        )


def gathered(
    outputs: Iterator[tuple[Range, Batch, Output]],
    selection: Selection,
    shape: Shape,
    points: dict[str, tuple[int, ...]],
) -> Iterable[tuple[Range, Content]]:
    """Await the copies from the devices; gather views of the kept rows, without padding, of a range.

    Args:
        outputs: of all batches of a range, then of the next.
        selection: of tokens.
        shape: of a batch.
        points: by name, a tensor's shape for one token.
    """
    pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in points}
    moments = {name: Moments.none(axes) for name, axes in points.items()}
    batches = 0
    for part, batch, output in outputs:
        used, counts = selection.used(batch, shape), [int(count) for [count] in _of_chips(output.counts_C)]
        for name in points:
            rows = (row for values in _of_chips(output.values[name]) for row in values)
            pieces[name] += [row[:length] for row, length in zip(rows, used, strict=False)]
            spread = zip(_of_chips(output.means[name]), _of_chips(output.deviations[name]), strict=True)
            for count, ([mean], [deviations]) in zip(counts, spread, strict=True):
                moments[name] += Moments(count, mean.astype(np.float64), deviations.astype(np.float64))
        batches += 1
        if batches == len(part.batches):
            yield part, selection.content(part, pieces, moments)
            pieces = {name: [] for name in points}
            moments = {name: Moments.none(axes) for name, axes in points.items()}
            batches = 0


def _of_chips(array: jax.Array) -> list[NDArray[Any]]:
    """Return each chip's part of an array in the host's memory, in order; none is copied twice."""
    parts = sorted(array.addressable_shards, key=lambda part: part.index[0].start or 0)
    return [np.asarray(part.data) for part in parts]
