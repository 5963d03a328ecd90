"""Shards as they are written, each recorded, so that an interrupted preparation resumes after the last."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload.data.conversations import Encoded
from workload.data.tokens import MANIFEST, Longest, Shard
from workload.errors import DataError

PROGRESS = "unfinished.json"


@dataclass
class Done:
    """Extent of the finished shards.

    Attributes:
        documents: complete in them.
        offset: tokens of the next document that are in them too.
        shards: the shards themselves.
        longest: of conversations.
        cut: see `PreparationSummary`.
    """

    documents: int = 0
    offset: int = 0
    shards: list[Shard] = field(default_factory=list)
    longest: Longest = field(default_factory=Longest)
    cut: int = 0


@contextmanager
def room(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error with a fix."""
    try:
        yield
    except OSError as error:
        fix = "make room, or let this user write there, and call again: it resumes after the last whole shard"
        raise DataError(f"{path}: can't be written: {error.strerror}\n    fix: {fix}") from None


def resumed(out: Path, key: str) -> Done:
    """Return the shards that an earlier call with the same arguments finished; else create the folder.

    An earlier call that finished no shard is ignored.
    """
    done = Done()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        try:
            progress = json.loads((out / PROGRESS).read_text())
        except (OSError, ValueError):
            progress = {}
        if "shards" not in progress or (out / MANIFEST).exists():
            fix = "name a new folder, or remove it"
            raise DataError(f"--out {out}: is there and not empty\n    fix: {fix}")
        if progress["shards"] and progress["key"] != key:
            was = (
                f"{len(progress['shards'])} shards of other sources, of sources that changed since,"
                " or by another tokenizer, --end, --field or version"
            )
            fix = "call with the same arguments and sources as before to continue, or name a new folder"
            raise DataError(f"--out {out}: holds {was}\n    fix: {fix}")
        if progress["shards"]:
            shards = [Shard(**shard) for shard in progress["shards"]]
            # Versions that knew no conversations wrote neither of the last two.
            longest, cut = Longest(**progress.get("longest", {})), progress.get("cut", 0)
            done = Done(progress["documents"], progress["offset"], shards, longest, cut)
        known = {name for shard in done.shards for name in (shard.file, shard.marks)} | {PROGRESS}
        for path in out.iterdir():
            if path.name not in known:
                path.unlink()  # an unfinished shard
    out.mkdir(parents=True, exist_ok=True)
    _note(out, key, done)  # at once, to mark the folder before its first shard
    return done


def _note(out: Path, key: str, done: Done) -> None:
    write_whole(out / PROGRESS, json.dumps({"key": key, **asdict(done)}) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name, and rename it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


class Writer:
    """Writer that cuts a stream of documents into shards of at most `shard_tokens`.

    Conversations aren't cut: a shard that begins with a longer one holds it alone.
    """

    def __init__(self, out: Path, key: str, done: Done, shard_tokens: int, dtype: np.dtype[Any]):
        self.documents = done.documents
        self.tokens = sum(shard.tokens for shard in done.shards)
        self.dtype = dtype
        self._out, self._key, self._done, self._shard_tokens = out, key, done, shard_tokens
        self._skip = done.offset
        self._pending: list[NDArray[Any]] = []
        self._marks: list[NDArray[np.uint8]] = []
        self._count = 0

    def add(self, document: Encoded) -> None:
        """Write a document's tokens."""
        tokens, most = document.tokens_L, self._shard_tokens
        if document.marks_L is not None:
            if self._count and self._count + len(tokens) > most:
                self._finish_shard(self.documents, 0)
            self._marks.append(document.marks_L)
            most = max(most, len(tokens))
            self._done.cut += document.cut
            if len(tokens) > self._done.longest.tokens:
                self._done.longest = Longest(len(tokens), document.where.rpartition("/")[2])
        offset, self._skip = self._skip, 0
        while offset < len(tokens):
            piece = tokens[offset : offset + most - self._count]
            self._pending.append(piece.astype(self.dtype))
            self._count += len(piece)
            self.tokens += len(piece)
            offset += len(piece)
            if self._count == most:
                whole = offset == len(tokens)
                self._finish_shard(self.documents + whole, 0 if whole else offset)
        self.documents += 1

    def close(self) -> None:
        """Finish the last shard."""
        if self._count:
            self._finish_shard(self.documents, 0)

    def _finish_shard(self, documents: int, offset: int) -> None:
        file = f"tokens-{len(self._done.shards):05}.bin"
        shard = Shard(file, self._count, self._written(file, self._pending))
        if self._marks:
            shard = replace(shard, marks_sha256=self._written(shard.marks, self._marks))
        self._done.shards.append(shard)
        self._done.documents, self._done.offset = documents, offset
        with room(self._out / PROGRESS):
            _note(self._out, self._key, self._done)
        self._pending, self._marks, self._count = [], [], 0

    def _written(self, name: str, pieces: list[NDArray[Any]]) -> str:
        """Write a file; return its sha256."""
        raw = b"".join(piece.tobytes() for piece in pieces)
        with room(self._out / name):
            (self._out / name).write_bytes(raw)
        return hashlib.sha256(raw).hexdigest()
