"""Preparation of documents as token files; reproducible byte for byte.

    workload data prepare --source /usr/share/common-licenses --out /tmp/tokens
    workload data prepare --source c4/ --tokenizer llama-3.1-8b/ --out tokens/

Documents stream through in batches: one thread reads while the tokenizer works on all cores.
Every finished shard is recorded, so that an interrupted command resumes there.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from workload.data.sources import LINES, PARQUET, REJECTED, Sample, Sources
from workload.data.tokenizers import Bytes, Tokenizer, batches
from workload.data.tokens import MANIFEST, VERSION, Shard, token_dtype
from workload.errors import DataError

SHARD_TOKENS = 2**26  # 128 MiB a file at 2 bytes a token
PROGRESS = "unfinished.json"
MOST_NAMED = 20  # rejected files in a summary; rejected.jsonl lists all
_BATCH_CHARACTERS = 2**22


@dataclass(frozen=True)
class PreparationSummary:
    """Result of a preparation.

    Attributes:
        documents: in the token files.
        tokens: of them.
        repeated: documents left out as duplicates.
        rejected: count of files and rows that aren't documents, by reason; `rejected.jsonl` lists them.
        passed_over: rejected files, the first of many.
    """

    documents: int
    tokens: int
    repeated: int
    rejected: dict[str, int]
    passed_over: tuple[Sample, ...]

    def reasons(self) -> str:
        """Return the rejected counts as text; empty if there are none."""
        return "; ".join(f"{count} × {reason}" for reason, count in self.rejected.items())


@dataclass
class _Done:
    """Extent of the finished shards.

    Attributes:
        documents: complete in them.
        offset: tokens of the next document that are in them too.
        shards: the shards themselves.
    """

    documents: int = 0
    offset: int = 0
    shards: list[Shard] = field(default_factory=list)


def prepare(
    sources: Sequence[Path],
    out: Path,
    tokenizer: Tokenizer | None = None,
    field_name: str = "text",
    shard_tokens: int = SHARD_TOKENS,
    progress: Callable[[str], None] | None = None,
) -> PreparationSummary:
    """Write shards and, last of all, the manifest that makes them valid.

    Duplicate documents are left out. A folder that an earlier call with the same arguments left
    unfinished is resumed.

    Args:
        sources: files and folders; see `Sources`.
        out: a new or empty folder, or an unfinished one.
        tokenizer: default: bytes.
        field_name: of JSON lines and Parquet.
        shard_tokens: maximum of a file.
        progress: receives a line now and then.

    Raises:
        DataError: no source, no text in the sources, or `out` holds other data.
    """
    tokenizer = tokenizer or Bytes()
    reading = Sources(sources, field_name)
    for source in sources:
        if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
            fix = "name a folder elsewhere"
            raise DataError(f"--out {out}: lies in --source {source}, and would be read\n    fix: {fix}")
    # The key of everything that decides the output: only an unfinished folder with the same key is resumed.
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in reading.files()]
    begin, end = tokenizer.begin_of_document, tokenizer.end_of_document
    arguments = [files, tokenizer.identity, begin, end, field_name, shard_tokens]
    key = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()
    with _room(out):
        done = _begin(out, key)
    if progress and done.shards:
        progress(f"resumes after {len(done.shards)} shards, {done.documents} documents")
    # Read, leave out duplicates, encode, and cut into shards.
    aside = _Aside(out / REJECTED)
    unique = _Unique(reading.documents(aside.take))
    writer = _Writer(out, key, done, shard_tokens, token_dtype(tokenizer.vocab_size))
    reported = time.monotonic()
    for tokens in _encoded(tokenizer, unique, done.documents):
        writer.add(tokens)
        if progress and time.monotonic() > reported + 2:
            reported = time.monotonic()
            progress(
                f"{writer.documents} documents, {writer.tokens / 1e6:.1f} M tokens, {len(done.shards)} shards"
            )
    writer.close()
    aside.close()
    counts, passed_over = dict(aside.counts), tuple(aside.files)
    summary = PreparationSummary(writer.documents, writer.tokens, unique.repeated, counts, passed_over)
    if not summary.documents:
        (out / PROGRESS).unlink()
        (out / REJECTED).unlink(missing_ok=True)
        names = ", ".join(map(str, sources))
        of = f"in {len(files)} files{': ' + summary.reasons() if summary.rejected else ''}"
        fix = f"name text, {' '.join(LINES)} or {' '.join(PARQUET)}; of compressed ones .gz is read"
        raise DataError(f"--source {names}: holds no UTF-8 text {of}\n    fix: {fix}")
    # The manifest comes last: with it the folder is complete.
    manifest = {
        "version": VERSION,
        "tokenizer": tokenizer.name,
        "tokenizer_sha256": tokenizer.identity,
        "vocab_size": tokenizer.vocab_size,
        "begin_of_document": list(begin),
        "end_of_document": end,
        "dtype": writer.dtype.str,
        "documents": summary.documents,
        "tokens": summary.tokens,
        "shards": [asdict(shard) for shard in done.shards],
    }
    with _room(out / MANIFEST):
        for file in tokenizer.files:  # needed to use the model
            (out / file.name).write_bytes(file.read_bytes())
        _write_whole(out / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        (out / PROGRESS).unlink()
    return summary


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error with a fix."""
    try:
        yield
    except OSError as error:
        fix = "make room, or let this user write there, and call again: it resumes after the last whole shard"
        raise DataError(f"{path}: can't be written: {error.strerror}\n    fix: {fix}") from None


def _begin(out: Path, key: str) -> _Done:
    """Return the shards that an earlier call with the same arguments finished; else create the folder.

    An earlier call that finished no shard is ignored.
    """
    done = _Done()
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
            done = _Done(progress["documents"], progress["offset"], shards)
        known = {shard.file for shard in done.shards} | {PROGRESS}
        for path in out.iterdir():
            if path.name not in known:
                path.unlink()  # an unfinished shard
    out.mkdir(parents=True, exist_ok=True)
    _note(out, key, done)  # at once, to mark the folder before its first shard
    return done


def _note(out: Path, key: str, done: _Done) -> None:
    _write_whole(out / PROGRESS, json.dumps({"key": key, **asdict(done)}) + "\n")


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


class _Aside:
    """Rejected samples, listed in a file that is created with the first of them."""

    def __init__(self, path: Path):
        self._path = path
        self.counts: Counter[str] = Counter()
        self.files: list[Sample] = []
        self._file: IO[str] | None = None

    def take(self, sample: Sample) -> None:
        self.counts[sample.problem] += 1
        if not sample.is_text and len(self.files) < MOST_NAMED:
            self.files.append(sample)
        with _room(self._path):
            self._file = self._file or self._path.open("w", encoding="utf-8")
            self._file.write(json.dumps({"where": sample.where, "reason": sample.problem}) + "\n")

    def close(self) -> None:
        if self._file:
            with _room(self._path):
                self._file.close()


class _Unique:
    """Documents without duplicates."""

    def __init__(self, documents: Iterator[str]):
        self._documents = documents
        self.repeated = 0

    def __iter__(self) -> Iterator[str]:
        seen: set[bytes] = set()
        for text in self._documents:
            digest = hashlib.sha256(text.encode()).digest()[:16]
            if digest in seen:
                self.repeated += 1
            else:
                seen.add(digest)
                yield text


def _encoded(tokenizer: Tokenizer, documents: _Unique, skip: int) -> Iterator[NDArray[np.uint32]]:
    """Encode each document after the first `skip`; a batch is read while another is encoded."""
    unread = batches(islice(documents, skip, None), str, _BATCH_CHARACTERS)
    with ThreadPoolExecutor(1) as reader:
        coming: Future[list[str]] = reader.submit(next, unread, [])
        while batch := coming.result():
            coming = reader.submit(next, unread, [])
            yield from tokenizer.encode(batch)


class _Writer:
    """Writer that cuts a stream of documents into shards of at most `shard_tokens`."""

    def __init__(self, out: Path, key: str, done: _Done, shard_tokens: int, dtype: np.dtype[Any]):
        self.documents = done.documents
        self.tokens = sum(shard.tokens for shard in done.shards)
        self.dtype = dtype
        self._out, self._key, self._done, self._shard_tokens = out, key, done, shard_tokens
        self._skip = done.offset
        self._pending: list[NDArray[Any]] = []
        self._count = 0

    def add(self, tokens: NDArray[np.uint32]) -> None:
        offset, self._skip = self._skip, 0
        while offset < len(tokens):
            piece = tokens[offset : offset + self._shard_tokens - self._count]
            self._pending.append(piece.astype(self.dtype))
            self._count += len(piece)
            self.tokens += len(piece)
            offset += len(piece)
            if self._count == self._shard_tokens:
                whole = offset == len(tokens)
                self._finish_shard(self.documents + whole, 0 if whole else offset)
        self.documents += 1

    def close(self) -> None:
        if self._count:
            self._finish_shard(self.documents, 0)

    def _finish_shard(self, documents: int, offset: int) -> None:
        raw = b"".join(piece.tobytes() for piece in self._pending)
        file = f"tokens-{len(self._done.shards):05}.bin"
        with _room(self._out / file):
            (self._out / file).write_bytes(raw)
            self._done.shards.append(Shard(file, self._count, hashlib.sha256(raw).hexdigest()))
            self._done.documents, self._done.offset = documents, offset
            _note(self._out, self._key, self._done)
        self._pending, self._count = [], 0
