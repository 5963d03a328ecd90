"""Token files for the trainer: mapped into memory, never loaded.

A folder holds `manifest.json` and the shards that it names. A shard is a flat run of
little-endian tokens, uint16 or uint32. Examples are windows of L+1 tokens, L apart, so that
every token but the first is a target once; none crosses from one shard into the next. Documents
are contiguous; a token marks the end of each.
"""

import bisect
import hashlib
import json
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload import command
from workload.errors import DataError

MANIFEST = "manifest.json"
VERSION = 3  # 2 had no begin_of_document: no document began with anything


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smaller of the two dtypes that holds every token of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


@dataclass(frozen=True)
class Shard:
    """A token file: its name in the folder, its length and its content's sha256."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Content of `manifest.json`, and the sha256 of its bytes: the data's identity."""

    tokenizer: str
    tokenizer_sha256: str  # of tokenizer.json, or the word bytes
    vocab_size: int
    begin_of_document: tuple[int, ...]  # first tokens of each
    end_of_document: int
    dtype: np.dtype[Any]
    documents: int
    tokens: int
    shards: tuple[Shard, ...]
    sha256: str

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest and check that each shard has its full length.

        Raises:
            DataError: a file is missing, unreadable or truncated.
        """
        path = folder / MANIFEST
        try:
            raw = path.read_bytes()
            content: dict[str, Any] = json.loads(raw)
            manifest = cls(
                tokenizer=content["tokenizer"],
                tokenizer_sha256=content["tokenizer_sha256"],
                vocab_size=content["vocab_size"],
                begin_of_document=tuple(content.get("begin_of_document", ())),
                end_of_document=content["end_of_document"],
                dtype=np.dtype(content["dtype"]),
                documents=content["documents"],
                tokens=content["tokens"],
                shards=tuple(Shard(**shard) for shard in content["shards"]),
                sha256=hashlib.sha256(raw).hexdigest(),
            )
            numbers = (
                manifest.vocab_size,
                *manifest.begin_of_document,
                manifest.end_of_document,
                manifest.documents,
                manifest.tokens,
            )
            if not all(isinstance(number, int) for number in numbers) or content.get("version", 0) > VERSION:
                raise ValueError(f"is of version {content.get('version')}, or has text in place of numbers")
        except OSError as error:
            fix = (
                f"make token files with `{command('data', 'prepare', '--source', 'DIR', '--out', 'DIR')}`,"
                " and name their folder by $DATA_DIR or data.path"
            )
            raise DataError(f"{path}: can't be read: {error.strerror}\n    fix: {fix}") from None
        except (ValueError, KeyError, TypeError) as error:
            fix = "prepare the data again with this version"
            raise DataError(f"{path}: is not a manifest: {error!r}\n    fix: {fix}") from None
        for shard in manifest.shards:
            size_bytes = (folder / shard.file).stat().st_size if (folder / shard.file).is_file() else None
            if size_bytes != shard.tokens * manifest.dtype.itemsize:
                state = "is missing" if size_bytes is None else f"has {size_bytes} bytes"
                rule = f"the manifest says {shard.tokens * manifest.dtype.itemsize} bytes"
                raise DataError(f"{folder / shard.file}: {state}, {rule}\n    fix: prepare the data again")
        return manifest


class Dataset:
    """Examples of a folder of token files."""

    def __init__(self, folder: Path, sequence_length: int):
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self.sequence_length = sequence_length
        windows = [max(0, shard.tokens - 1) // sequence_length for shard in self.manifest.shards]
        self._ends = list(accumulate(windows))
        dtype = self.manifest.dtype
        self._shards = [_map(folder / shard.file, shard.tokens, dtype) for shard in self.manifest.shards]
        if not self._ends or not self._ends[-1]:
            have = f"{self.manifest.tokens} tokens hold no example of {sequence_length + 1}"
            raise DataError(f"{folder}: {have}\n    fix: add text, or lower data.sequence_length")

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, examples: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the tokens of some examples, of shape len(examples) x (L+1)."""
        tokens_BxL1 = np.empty((len(examples), self.sequence_length + 1), np.int32)
        for row, example in zip(tokens_BxL1, examples, strict=True):
            shard = bisect.bisect_right(self._ends, example)
            start = (int(example) - (self._ends[shard - 1] if shard else 0)) * self.sequence_length
            row[:] = self._shards[shard][start : start + self.sequence_length + 1]
            if row.max() >= self.manifest.vocab_size:
                name, most = self.manifest.shards[shard].file, self.manifest.vocab_size
                raise DataError(
                    f"{name}: token {row.max()} is outside the vocabulary of {most}: the file is damaged\n"
                    "    fix: prepare the data again"
                )
        return tokens_BxL1

    def segments(self, tokens_BxL1: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the document of every token, counted from 0 in each example; the end token belongs to it."""
        ends_BxL1 = tokens_BxL1 == self.manifest.end_of_document
        segments_BxL1 = np.zeros_like(tokens_BxL1)
        np.cumsum(ends_BxL1[:, :-1], axis=1, out=segments_BxL1[:, 1:])
        return segments_BxL1


def _map(path: Path, tokens: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not tokens:  # an empty file can't be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
