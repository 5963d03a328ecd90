"""Token files for the trainer: mapped into memory, never loaded.

A folder holds `manifest.json` and the shards that it names. A shard is a flat run of
little-endian tokens, uint16 or uint32. Examples are windows of L+1 tokens, L apart, so that
every token but the first is a target once; none crosses from one shard into the next. Documents
are contiguous; a token marks the end of each.

Conversations have a file of marks beside each shard (`conversations.py`): a byte a token, the sum of ANSWER
and BEGIN. Their examples are rows of whole ones.
"""

import bisect
import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload import command
from workload.data.order import Order
from workload.errors import DataError

MANIFEST = "manifest.json"
VERSION = 3
MARKED = 4  # of conversations
ANSWER, BEGIN = 1, 2
"""Bits of a mark: the token counts for the loss; it is the first of a conversation."""

Rows = dict[str, NDArray[np.int32]]
"""Examples: tokens_BxL1; segments_BxL1, the document of each; counted_BxL1, 1 where it counts as a target."""
PARTS = ("tokens_BxL1", "segments_BxL1", "counted_BxL1")


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smaller of the two dtypes that holds every token of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


@dataclass(frozen=True)
class Shard:
    """A token file: its name in the folder, its length, its content's sha256 and that of its marks."""

    file: str
    tokens: int
    sha256: str
    marks_sha256: str = ""

    @property
    def marks(self) -> str:
        """Name of the file of its marks."""
        return f"marks-{self.file.removeprefix('tokens-')}"

    def content(self) -> dict[str, Any]:
        """Return it for JSON; without marks as before there were any."""
        return {name: value for name, value in asdict(self).items() if value != ""}


@dataclass(frozen=True)
class Longest:
    """The longest conversation of a folder: its tokens, and the file and line that it came from."""

    tokens: int = 0
    where: str = ""


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
    longest: Longest | None = None  # None: these are no conversations

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
                begin_of_document=tuple(content["begin_of_document"]),
                end_of_document=content["end_of_document"],
                dtype=np.dtype(content["dtype"]),
                documents=content["documents"],
                tokens=content["tokens"],
                shards=tuple(Shard(**shard) for shard in content["shards"]),
                sha256=hashlib.sha256(raw).hexdigest(),
                longest=Longest(**content["longest"]) if "longest" in content else None,
            )
            numbers = (
                manifest.vocab_size,
                *manifest.begin_of_document,
                manifest.end_of_document,
                manifest.documents,
                manifest.tokens,
            )
            if not all(isinstance(number, int) for number in numbers) or content.get("version", 0) > MARKED:
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
            _require(folder / shard.file, shard.tokens * manifest.dtype.itemsize)
            if manifest.longest:
                _require(folder / shard.marks, shard.tokens)
        return manifest


def _require(path: Path, size_bytes: int) -> None:
    """Raise DataError unless a file has this size."""
    known = path.stat().st_size if path.is_file() else None
    if known != size_bytes:
        state = "is missing" if known is None else f"has {known} bytes"
        rule = f"the manifest says {size_bytes} bytes"
        raise DataError(f"{path}: {state}, {rule}\n    fix: prepare the data again")


class Examples(ABC):
    """Examples of one length.

    Attributes:
        folder: of the token files.
        manifest: of them.
        sequence_length: inputs of an example; it has one more token, the last target.
    """

    folder: Path
    manifest: Manifest
    sequence_length: int

    @property
    def marked(self) -> bool:
        """Return True if some are of conversations, of which the answers count alone."""
        return self.manifest.longest is not None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples, each counted once."""

    @abstractmethod
    def at(self, slots: range, seed: int) -> Rows:
        """Return the examples of some slots of the endless sequence of a seed; see `order.py`."""


class Folder(Examples):
    """Examples of a folder of token files, mapped into memory."""

    def __init__(self, folder: Path, sequence_length: int, manifest: Manifest | None = None):
        self.folder, self.sequence_length = folder, sequence_length
        self.manifest = manifest or Manifest.read(folder)
        self._shards = [
            mapped(folder / shard.file, shard.tokens, self.manifest.dtype) for shard in self.manifest.shards
        ]

    @abstractmethod
    def rows(self, examples: NDArray[np.int64]) -> Rows:
        """Return some examples, by their numbers."""

    def at(self, slots: range, seed: int) -> Rows:
        """See `Examples.at`."""
        return self.rows(Order(len(self), seed).at(slots))

    def checked(self, tokens: NDArray[Any], shard: int) -> NDArray[Any]:
        """Return some tokens of a shard; DataError if one is outside the vocabulary."""
        if len(tokens) and tokens.max() >= self.manifest.vocab_size:
            name, most = self.manifest.shards[shard].file, self.manifest.vocab_size
            raise DataError(
                f"{name}: token {tokens.max()} is outside the vocabulary of {most}: the file is damaged\n"
                "    fix: prepare the data again"
            )
        return tokens


class Dataset(Folder):
    """Windows of a folder of documents."""

    def __init__(self, folder: Path, sequence_length: int, manifest: Manifest | None = None):
        super().__init__(folder, sequence_length, manifest)
        windows = [max(0, shard.tokens - 1) // sequence_length for shard in self.manifest.shards]
        self._ends = list(accumulate(windows))
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
            row[:] = self.checked(self._shards[shard][start : start + self.sequence_length + 1], shard)
        return tokens_BxL1

    def rows(self, examples: NDArray[np.int64]) -> Rows:
        """See `Folder.rows`; every token counts."""
        tokens = self.read(examples)
        return dict(zip(PARTS, (tokens, self.segments(tokens), np.ones_like(tokens)), strict=True))

    def segments(self, tokens_BxL1: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the document of every token, counted from 0 in each example; the end token belongs to it."""
        ends_BxL1 = tokens_BxL1 == self.manifest.end_of_document
        segments_BxL1 = np.zeros_like(tokens_BxL1)
        np.cumsum(ends_BxL1[:, :-1], axis=1, out=segments_BxL1[:, 1:])
        return segments_BxL1


def mapped(path: Path, tokens: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the content of a file, mapped into memory."""
    if not tokens:  # an empty file can't be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
