"""What a task makes of a shard's records: tokens, where each document lies in them, what was rejected.

Each is made in memory and created once, its SHA-256 in its name. A task that runs twice, by a retry or by
speculation, finds its own bytes there. Its last object, `parts/NUMBER.json`, says that the shard is done.
"""

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from workload.data.tokenizers import Tokenizer, open_tokenizer
from workload.data.tokens import token_dtype
from workload.data.words import CachedTokenizer
from workload.preprocess.documents import ALIKE, REJECTED, Record, fingerprint
from workload.runs.store import Store, create_same, open_store

PARTS = "parts/"
_BATCH_CHARACTERS = 2**20


@dataclass(frozen=True)
class Shipped:
    """A tokenizer as tasks get it, on machines that share no folder with the driver.

    Attributes:
        name: of the folder that it was read from, or `bytes`.
        files: name and content of each of its files.
        end: see `HuggingFace`.
    """

    name: str
    files: tuple[tuple[str, bytes], ...]
    end: str


@dataclass(frozen=True)
class Object:
    """A name in the run's folder, what of the shard is in it, and its SHA-256."""

    file: str
    sha256: str
    size_bytes: int


@dataclass
class Part:
    """What became of a shard's records.

    Attributes:
        number: of the shard.
        tokens, index, rejected: its objects; None where there is nothing in it.
        documents: in the shard.
        token_count: of them.
        reasons: how many are rejected, by reason.
        fingerprint: of all documents that came, those that repeat others too.
    """

    number: int
    tokens: Object | None = None
    index: Object | None = None
    rejected: Object | None = None
    documents: int = 0
    token_count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    fingerprint: int = 0

    @property
    def objects(self) -> list[Object]:
        """All that the shard is."""
        return [one for one in (self.tokens, self.index, self.rejected) if one]

    def dumps(self) -> bytes:
        """As JSON; the same part is the same bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode() + b"\n"

    @classmethod
    def loads(cls, raw: bytes) -> "Part":
        """From JSON."""
        part = cls(**json.loads(raw))
        for name in ("tokens", "index", "rejected"):
            if entry := getattr(part, name):
                setattr(part, name, Object(**entry))
        return part


def ship(tokenizer: Tokenizer, end: str) -> Shipped:
    """The tokenizer for tasks."""
    return Shipped(tokenizer.name, tuple((one.name, one.read_bytes()) for one in tokenizer.files), end)


@lru_cache(1)
def unpacked(shipped: Shipped) -> Tokenizer:
    """The tokenizer, once for each process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Spark has a process for each core already
    if not shipped.files:
        return open_tokenizer("bytes")
    with tempfile.TemporaryDirectory(prefix="preprocess-") as folder:
        inside = Path(folder, shipped.name)
        inside.mkdir()
        for name, content in shipped.files:
            (inside / name).write_bytes(content)
        return CachedTokenizer(inside, shipped.end)


def part_name(number: int) -> str:
    """Where a shard's last object lies."""
    return f"{PARTS}{number:05}.json"


def write(number: int, records: Iterable[Record], url: str, shipped: Shipped, dedup: bool) -> Part:
    """A shard, from its records in their order.

    Raises:
        StoreError: storage can't be reached or written.
        RunError: an object is there with other bytes.
    """
    store, part, reasons = open_store(url), Part(number), Counter[str]()
    tokens, index, rejected = bytearray(), bytearray(), bytearray()
    tokenizer = unpacked(shipped)
    dtype = token_dtype(tokenizer.vocab_size)

    def unique() -> Iterator[tuple[bytes, str, str]]:
        """Documents that repeat no other; the first of those with one hash is by input and number."""
        before, first, mark, root = b"", "", b"", b""
        for (_, digest, kind, *_), value in records:
            if kind == ALIKE:
                mark, root = digest, value
                continue
            reason, detail, count = "", "", 1
            if kind == REJECTED:
                where, reason, detail, count = value
            else:
                where, text = value
                part.fingerprint = (part.fingerprint + fingerprint(where, text)) % 2**256
                if dedup and digest == before:
                    reason, detail = "repeats", first
                elif digest == mark:
                    reason, detail = "alike", root.hex()
                before, first = digest, first if digest == before else where
            if reason:
                reasons[reason] += count
                entry = {"document": where, "reason": reason, "detail": detail}
                rejected.extend(_line(entry | ({"rows": count} if count > 1 else {})))
            else:
                yield digest, where, text

    for batch in _batches(unique()):
        for (digest, where, _), row in zip(batch, tokenizer.encode([one[2] for one in batch]), strict=True):
            tokens += row.astype(dtype).tobytes()
            entry = {"document": where, "start": part.token_count, "tokens": len(row), "sha256": digest.hex()}
            index += _line(entry)
            part.token_count += len(row)
            part.documents += 1
    part.tokens = _created(store, "tokens", number, "bin", tokens)
    part.index = _created(store, "index", number, "jsonl", index)
    part.rejected = _created(store, "rejected", number, "jsonl", rejected)
    part.reasons = dict(reasons)
    create_same(store, part_name(number), part.dumps())
    return part


def _created(store: Store, what: str, number: int, end: str, content: bytearray) -> Object | None:
    if not content:
        return None
    raw = bytes(content)
    digest = hashlib.sha256(raw).hexdigest()
    name = f"{what}-{number:05}-{digest[:16]}.{end}"
    create_same(store, name, raw)
    return Object(name, digest, len(raw))


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def _batches(documents: Iterable[tuple[bytes, str, str]]) -> Iterator[list[tuple[bytes, str, str]]]:
    batch: list[tuple[bytes, str, str]] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document[2])
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
