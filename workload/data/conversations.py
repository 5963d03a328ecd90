"""Conversations as token files with marks, and as examples: whole ones, packed into rows.

No row begins amid a conversation, so each answer has its question before it. The rest of a row is padding,
each token in a segment of its own, so that nothing attends to it and none of it counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workload.data.packing import Shape, batches
from workload.data.sources import Sample
from workload.data.tokenizers import Tokenizer
from workload.data.tokens import ANSWER, BEGIN, PARTS, Dataset, Folder, Manifest, Rows, mapped
from workload.errors import DataError

_ROWS = 64  # packed at once
_PIECE = 2**24  # marks searched at once


@dataclass(frozen=True)
class Encoded:
    """A document as tokens.

    Attributes:
        tokens_L: with what begins and ends it.
        marks_L: of a conversation.
        where: file and line.
        cut: True if tokens were left out.
    """

    tokens_L: NDArray[np.uint32]
    marks_L: NDArray[np.uint8] | None = None
    where: str = ""
    cut: bool = False


def encode(samples: Sequence[Sample], tokenizer: Tokenizer, max_tokens: int) -> list[Encoded]:
    """Return conversations as tokens with marks, cut to `max_tokens` (0: whole).

    Raises:
        DataError: no token of an answer is left of one.
    """
    texts = [sample.content for sample in samples]
    result = []
    for sample, (tokens_L, offsets) in zip(samples, tokenizer.placed(texts), strict=True):
        marks_L = np.zeros(len(tokens_L), np.uint8)
        for _, begin, end in sample.spans:
            marks_L[(offsets[:, 0] < end) & (offsets[:, 1] > begin)] |= ANSWER
        marks_L[:1] &= ~np.uint8(ANSWER)  # nothing is before it to predict it from
        marks_L[:1] |= BEGIN
        kept = slice(max_tokens or None)
        if not (marks_L[kept] & ANSWER).any():
            first = int(np.argmax(marks_L & ANSWER)) + 1
            rule = f"its answers begin with token {first} of {len(tokens_L)}, after --truncate {max_tokens}"
            fix = "raise --truncate, or leave it out"
            if not (marks_L & ANSWER).any():
                rule, fix = "its answers are no tokens", "mend it, or leave it out"
            raise DataError(f"{sample.where}: {rule}\n    fix: {fix}")
        cut = 0 < max_tokens < len(tokens_L)
        result.append(Encoded(tokens_L[kept], marks_L[kept], sample.where, cut))
    return result


class Conversations(Folder):
    """Rows of whole conversations of a folder."""

    def __init__(self, folder: Path, sequence_length: int, manifest: Manifest | None = None):
        """Pack them.

        Raises:
            DataError: one is longer than a row.
        """
        super().__init__(folder, sequence_length, manifest)
        longest = self.manifest.longest
        assert longest
        if longest.tokens > sequence_length + 1:
            rule = f"has {longest.tokens} tokens, an example {sequence_length + 1}"
            fix = (
                f"data.sequence_length = {longest.tokens - 1}, or prepare them with"
                f" --truncate {sequence_length + 1}"
            )
            raise DataError(f"{folder}: {longest.where}: {rule}\n    fix: {fix}")
        self._marks = [
            mapped(folder / shard.marks, shard.tokens, np.dtype(np.uint8)) for shard in self.manifest.shards
        ]
        begins = [_begins(marks) for marks in self._marks]
        ends = [np.append(begin[1:], len(marks)) for begin, marks in zip(begins, self._marks, strict=True)]
        shards = [np.full(len(begin), n) for n, begin in enumerate(begins)]
        self._places = np.stack([np.concatenate(part) for part in (shards, begins, ends)], axis=1)
        lengths = (self._places[:, 2] - self._places[:, 1]).tolist()
        shape = Shape(_ROWS, sequence_length + 1)
        self._rows = [row for batch in batches(lengths, shape) for row in batch]

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, examples: NDArray[np.int64]) -> Rows:
        """See `Folder.rows`."""
        shape = (len(examples), self.sequence_length + 1)
        tokens = np.full(shape, self.manifest.end_of_document, np.int32)
        segments, counted = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for number, example in enumerate(examples.tolist()):
            at, row = 0, self._rows[example]
            for segment, document in enumerate(row):
                shard, begin, end = self._places[document].tolist()
                place = slice(at, at := at + end - begin)
                tokens[number, place] = self.checked(self._shards[shard][begin:end], shard)
                segments[number, place] = segment
                counted[number, place] = self._marks[shard][begin:end] & ANSWER
            segments[number, at:] = np.arange(len(row), len(row) + shape[1] - at)
        return dict(zip(PARTS, (tokens, segments, counted), strict=True))


def _begins(marks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the places of the first tokens of conversations."""
    pieces = range(0, len(marks), _PIECE)
    return np.concatenate([np.flatnonzero(marks[at : at + _PIECE] & BEGIN) + at for at in pieces])


def open_folder(folder: Path, sequence_length: int) -> Folder:
    """Open a folder of token files, of documents or of conversations."""
    manifest = Manifest.read(folder)
    return (Conversations if manifest.longest else Dataset)(folder, sequence_length, manifest)
