"""Turns documents into token files, byte for byte the same each time.

    workload data prepare --source /usr/share/common-licenses --out /tmp/tokens
    workload data prepare --source c4/ --tokenizer llama-3.1-8b/ --out tokens/

Documents stream through in batches: one thread reads while the tokenizer works on all cores.
Every shard that is finished is noted, so that an interrupted command resumes there.
"""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from workload.data.sources import LINES, PARQUET, REJECTED, Sample, Sources
from workload.data.tokenizers import Bytes, Tokenizer
from workload.data.tokens import MANIFEST, VERSION, Shard, token_dtype
from workload.errors import DataError

SHARD_TOKENS = 2**26  # 128 MiB a file at 2 bytes a token
PROGRESS = "unfinished.json"
MOST_NAMED = 20  # of the files passed over, to people; the file names all
_BATCH_CHARACTERS = 2**22


@dataclass(frozen=True)
class Summary:
    """What became of the sources.

    Attributes:
        documents: in the token files.
        tokens: of them.
        repeated: documents left out because they were there before.
        rejected: how many files and rows are none, by reason; `rejected.jsonl` names each.
        passed_over: the files among them, the first of many.
    """

    documents: int
    tokens: int
    repeated: int
    rejected: dict[str, int]
    passed_over: tuple[Sample, ...]

    def told(self) -> str:
        """What was rejected, for people; empty where nothing was."""
        return "; ".join(f"{count} × {reason}" for reason, count in self.rejected.items())


@dataclass
class _Done:
    """How far the finished shards reach.

    Attributes:
        documents: wholly in them.
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
    say: Callable[[str], None] | None = None,
) -> Summary:
    """Writes shards and, last of all, the manifest that makes them valid.

    A document that was seen before is left out. A folder that an earlier call left unfinished,
    with the same arguments, is gone on with.

    Args:
        sources: files and folders; see `Sources`.
        out: a new or empty folder, or one left unfinished.
        tokenizer: bytes, unless given.
        field_name: of JSON lines and Parquet.
        shard_tokens: at most so many tokens a file.
        say: takes a line about progress now and then; None keeps quiet.

    Raises:
        DataError: no source, no text in the sources, or `out` holds something else already.
    """
    tokenizer = tokenizer or Bytes()
    reading = Sources(sources, field_name)
    for source in sources:
        if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
            fix = "name a folder elsewhere"
            raise DataError(f"--out {out}: lies in --source {source}, and would be read\n    fix: {fix}")
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in reading.files()]
    begin, end = tokenizer.begin_of_document, tokenizer.end_of_document
    asked = [files, tokenizer.identity, begin, end, field_name, shard_tokens]
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    with _room(out):
        done = _begin(out, key)
    if say and done.shards:
        say(f"resumes after {len(done.shards)} shards, {done.documents} documents")
    aside = _Aside(out / REJECTED)
    unique = _Unique(reading.documents(aside.take))
    writer = _Writer(out, key, done, shard_tokens, token_dtype(tokenizer.vocab_size))
    reported = time.monotonic()
    for tokens in _encoded(tokenizer, unique, done.documents):
        writer.add(tokens)
        if say and time.monotonic() > reported + 2:
            reported = time.monotonic()
            say(
                f"{writer.documents} documents, {writer.tokens / 1e6:.1f} M tokens, {len(done.shards)} shards"
            )
    writer.close()
    aside.close()
    counts, passed_over = dict(aside.counts), tuple(aside.files)
    summary = Summary(writer.documents, writer.tokens, unique.repeated, counts, passed_over)
    if not summary.documents:
        (out / PROGRESS).unlink(missing_ok=True)
        (out / REJECTED).unlink(missing_ok=True)
        names = ", ".join(map(str, sources))
        of = f"in {len(files)} files{': ' + summary.told() if summary.rejected else ''}"
        fix = f"name text, {' '.join(LINES)} or {' '.join(PARQUET)}; of compressed ones .gz is read"
        raise DataError(f"--source {names}: holds no UTF-8 text {of}\n    fix: {fix}")
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
        for file in tokenizer.files:  # for the model that is made of them, which is of no use without
            (out / file.name).write_bytes(file.read_bytes())
        _write_whole(out / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        (out / PROGRESS).unlink(missing_ok=True)
    return summary


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Turns a full or read-only disk into an error that says what to do."""
    try:
        yield
    except OSError as error:
        fix = "make room, or let this user write there, and call again: it resumes after the last whole shard"
        raise DataError(f"{path}: can't be written: {error.strerror}\n    fix: {fix}") from None


def _begin(out: Path, key: str) -> _Done:
    """What an earlier call finished, if it had the same arguments; else a new folder.

    Where an earlier call finished no shard there is nothing to continue with, and nothing to lose.
    """
    done = _Done()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        try:
            left = json.loads((out / PROGRESS).read_text())
        except (OSError, ValueError):
            left = {}
        if "shards" not in left or (out / MANIFEST).exists():
            fix = "name a new folder, or remove it"
            raise DataError(f"--out {out}: is there and not empty\n    fix: {fix}")
        if left["shards"] and left["key"] != key:
            was = (
                f"{len(left['shards'])} shards of other sources, of sources that changed since,"
                " or by another tokenizer, --end, --field or version"
            )
            fix = "call with the same arguments and sources as before to continue, or name a new folder"
            raise DataError(f"--out {out}: holds {was}\n    fix: {fix}")
        if left["shards"]:
            shards = [Shard(**shard) for shard in left["shards"]]
            done = _Done(left["documents"], left["offset"], shards)
        known = {shard.file for shard in done.shards} | {PROGRESS}
        for path in out.iterdir():
            if path.name not in known:
                path.unlink()  # the shard that was being written
    out.mkdir(parents=True, exist_ok=True)
    _note(out, key, done)  # at once, so that the folder is known for ours before a shard is whole
    return done


def _note(out: Path, key: str, done: _Done) -> None:
    _write_whole(out / PROGRESS, json.dumps({"key": key, **asdict(done)}) + "\n")


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


class _Aside:
    """What is no document: each is named in a file, which isn't made where there is none."""

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
    """Documents that weren't seen before."""

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
    """Each document's tokens, but for the first `skip`; a batch is read while another is encoded."""
    batches = _batches(documents, skip)
    with ThreadPoolExecutor(1) as reader:
        coming: Future[list[str]] = reader.submit(next, batches, [])
        while batch := coming.result():
            coming = reader.submit(next, batches, [])
            yield from tokenizer.encode(batch)


def _batches(documents: _Unique, skip: int) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for number, text in enumerate(documents):
        if number < skip:
            continue
        batch.append(text)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Writer:
    """Cuts a stream of documents into shards of at most `shard_tokens`."""

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


def say_on_terminal(line: str) -> None:
    """Progress for people, out of the way of what a program reads."""
    print(f"  … {line}", file=sys.stderr, flush=True)
