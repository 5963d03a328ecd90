"""Preparation of documents as token files; reproducible byte for byte.

    workload data prepare --source /usr/share/common-licenses --out /tmp/tokens
    workload data prepare --source c4/ --tokenizer llama-3.1-8b/ --out tokens/
    workload data prepare --source chats.jsonl --chat --tokenizer llama-3.1-8b/ --out chats/

Documents stream through in batches: one thread reads while the tokenizer works on all cores.
Every finished shard is recorded, so that an interrupted command resumes there.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from views.counts import counted
from workload.data import conversations
from workload.data.conversations import Encoded
from workload.data.sources import LINES, PARQUET, REJECTED, Reading, Sample, Sources, usable
from workload.data.tokenizers import Bytes, Tokenizer, batches
from workload.data.tokens import MANIFEST, MARKED, VERSION, token_dtype
from workload.data.writing import PROGRESS, Writer, resumed, room, write_whole
from workload.errors import DataError

SHARD_TOKENS = 2**26  # 128 MiB a file at 2 bytes a token
MOST_NAMED = 20  # rejected files in a summary; rejected.jsonl lists all
_BATCH_CHARACTERS = 2**22


@dataclass(frozen=True)
class PreparationSummary:
    """Result of a preparation.

    Attributes:
        documents: in the token files.
        tokens: of them.
        repeated: documents left out as duplicates.
        cut: conversations of which the end was left out.
        rejected: count of files and rows that aren't documents, by reason; `rejected.jsonl` lists them.
        passed_over: rejected files, the first of many.
    """

    documents: int
    tokens: int
    repeated: int
    cut: int
    rejected: dict[str, int]
    passed_over: tuple[Sample, ...]

    def reasons(self) -> str:
        """Return the rejected counts as text; empty if there are none."""
        return "; ".join(f"{count} × {reason}" for reason, count in self.rejected.items())


def prepare(
    sources: Sequence[Path],
    out: Path,
    tokenizer: Tokenizer | None = None,
    field_name: str = "text",
    shard_tokens: int = SHARD_TOKENS,
    progress: Callable[[str], None] | None = None,
    chats: Reading | None = None,
    max_tokens: int = 0,
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
        chats: conversations of the sources, in place of their texts.
        max_tokens: of a conversation, which is cut there; 0: whole.

    Raises:
        DataError: no source, no text in the sources, or `out` holds other data.
    """
    tokenizer = tokenizer or Bytes()
    reading = chats or Sources(sources, field_name)
    for source in sources:
        if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
            fix = "name a folder elsewhere"
            raise DataError(f"--out {out}: lies in --source {source}, and would be read\n    fix: {fix}")
    # The key of everything that decides the output: only an unfinished folder with the same key is resumed.
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in reading.files()]
    begin, end = tokenizer.begin_of_document, tokenizer.end_of_document
    arguments = [files, tokenizer.identity, begin, end, field_name, shard_tokens]
    if chats:
        arguments += [chats.decides, max_tokens]
    key = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()
    with room(out):
        done = resumed(out, key)
    if progress and done.shards:
        progress(f"resumes after {len(done.shards)} shards, {done.documents} documents")
    # Read, leave out duplicates, encode, and cut into shards.
    aside = _Aside(out / REJECTED)
    unique = _Unique(usable(reading, aside.take))
    writer = Writer(out, key, done, shard_tokens, token_dtype(tokenizer.vocab_size))
    reported = time.monotonic()

    def encode(samples: list[Sample]) -> list[Encoded]:
        if chats:
            return conversations.encode(samples, tokenizer, max_tokens)
        return [Encoded(tokens) for tokens in tokenizer.encode([sample.content for sample in samples])]

    for document in _encoded(encode, unique, done.documents):
        writer.add(document)
        if progress and time.monotonic() > reported + 2:
            reported = time.monotonic()
            progress(
                f"{writer.documents} documents, {writer.tokens / 1e6:.1f} M tokens, {len(done.shards)} shards"
            )
    writer.close()
    aside.close()
    counts, passed_over = dict(aside.counts), tuple(aside.files)
    summary = PreparationSummary(
        writer.documents, writer.tokens, unique.repeated, done.cut, counts, passed_over
    )
    if not summary.documents:
        (out / PROGRESS).unlink()
        (out / REJECTED).unlink(missing_ok=True)
        names = ", ".join(map(str, sources))
        of = f"in {counted(len(files), 'file')}{': ' + summary.reasons() if summary.rejected else ''}"
        desired = "conversations" if chats else "UTF-8 text"
        fix = f"name text, {' '.join(LINES)} or {' '.join(PARQUET)}; of compressed ones .gz is read"
        raise DataError(f"--source {names}: holds no {desired} {of}\n    fix: {fix}")
    # The manifest comes last: with it the folder is complete.
    manifest = {
        "version": MARKED if chats else VERSION,
        "tokenizer": tokenizer.name,
        "tokenizer_sha256": tokenizer.identity,
        "vocab_size": tokenizer.vocab_size,
        "begin_of_document": list(begin),
        "end_of_document": end,
        "dtype": writer.dtype.str,
        "documents": summary.documents,
        "tokens": summary.tokens,
        "shards": [shard.content() for shard in done.shards],
        **({"longest": asdict(done.longest)} if chats else {}),
    }
    with room(out / MANIFEST):
        for file in tokenizer.files:  # needed to use the model
            (out / file.name).write_bytes(file.read_bytes())
        write_whole(out / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        (out / PROGRESS).unlink()
    return summary


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
        with room(self._path):
            self._file = self._file or self._path.open("w", encoding="utf-8")
            self._file.write(json.dumps({"where": sample.where, "reason": sample.problem}) + "\n")

    def close(self) -> None:
        if self._file:
            with room(self._path):
                self._file.close()


class _Unique:
    """Documents without duplicates."""

    def __init__(self, documents: Iterator[Sample]):
        self._documents = documents
        self.repeated = 0

    def __iter__(self) -> Iterator[Sample]:
        seen: set[bytes] = set()
        for document in self._documents:
            digest = hashlib.sha256(document.content.encode()).digest()[:16]
            if digest in seen:
                self.repeated += 1
            else:
                seen.add(digest)
                yield document


def _encoded(
    encode: Callable[[list[Sample]], list[Encoded]], documents: _Unique, skip: int
) -> Iterator[Encoded]:
    """Encode each document after the first `skip`; a batch is read while another is encoded."""
    unread = batches(islice(documents, skip, None), lambda sample: sample.content, _BATCH_CHARACTERS)
    with ThreadPoolExecutor(1) as reader:
        coming: Future[list[Sample]] = reader.submit(next, unread, [])
        while batch := coming.result():
            coming = reader.submit(next, unread, [])
            yield from encode(batch)
