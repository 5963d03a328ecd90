"""Token files as the trainer reads them: mapped into memory, never loaded.

A folder holds `manifest.json` and the shards that it names. A shard is a flat run of
little-endian uint16 tokens. Examples are windows of L+1 tokens, L apart, so that every
token but the first is a target once; none crosses from one shard into the next.
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

from workload.errors import DataError

MANIFEST = "manifest.json"
TOKEN = np.dtype("<u2")


@dataclass(frozen=True)
class Shard:
    """One token file: its name in the folder, its length and its content's sha256."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says, and the sha256 of its bytes: the data's identity."""

    tokenizer: str
    vocab_size: int
    documents: int
    tokens: int
    shards: tuple[Shard, ...]
    sha256: str

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads the manifest and checks that each shard is there with its full length.

        Raises:
            DataError: naming the file that is missing, unreadable or cut short.
        """
        path = folder / MANIFEST
        try:
            raw = path.read_bytes()
            content: dict[str, Any] = json.loads(raw)
            manifest = cls(
                tokenizer=content["tokenizer"],
                vocab_size=content["vocab_size"],
                documents=content["documents"],
                tokens=content["tokens"],
                shards=tuple(Shard(**shard) for shard in content["shards"]),
                sha256=hashlib.sha256(raw).hexdigest(),
            )
        except OSError as error:
            fix = "make token files with `workload data prepare --source DIR --out DIR`, or set data.path"
            raise DataError(f"{path}: can't be read: {error.strerror}\n    fix: {fix}") from None
        except (ValueError, KeyError, TypeError) as error:
            fix = "prepare the data again with this version"
            raise DataError(f"{path}: is not a manifest: {error!r}\n    fix: {fix}") from None
        for shard in manifest.shards:
            found = (folder / shard.file).stat().st_size if (folder / shard.file).is_file() else None
            if found != shard.tokens * TOKEN.itemsize:
                size = "is missing" if found is None else f"has {found} bytes"
                rule = f"the manifest says {shard.tokens * TOKEN.itemsize} bytes"
                raise DataError(f"{folder / shard.file}: {size}, {rule}\n    fix: prepare the data again")
        return manifest


class Dataset:
    """The examples of a folder of token files."""

    def __init__(self, folder: Path, sequence_length: int):
        self.manifest = Manifest.read(folder)
        self.sequence_length = sequence_length
        windows = [max(0, shard.tokens - 1) // sequence_length for shard in self.manifest.shards]
        self._ends = list(accumulate(windows))
        self._shards = [_map(folder / shard.file, shard.tokens) for shard in self.manifest.shards]
        if not self._ends or not self._ends[-1]:
            have = f"{self.manifest.tokens} tokens hold no example of {sequence_length + 1}"
            raise DataError(f"{folder}: {have}\n    fix: add text, or lower data.sequence_length")

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, examples: NDArray[np.int64]) -> NDArray[np.int32]:
        """The tokens of some examples, of shape len(examples) x (L+1)."""
        return np.stack([self._window(int(example)) for example in examples])

    def _window(self, example: int) -> NDArray[np.int32]:
        shard = bisect.bisect_right(self._ends, example)
        start = (example - (self._ends[shard - 1] if shard else 0)) * self.sequence_length
        return self._shards[shard][start : start + self.sequence_length + 1].astype(np.int32)


def _map(path: Path, tokens: int) -> NDArray[np.uint16]:
    if not tokens:  # an empty file can't be mapped
        return np.empty(0, TOKEN)
    return np.memmap(path, dtype=TOKEN, mode="r")
