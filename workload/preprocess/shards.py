"""Writing of a shard: tokens, index of its documents, and rejected ones.

Each object is built in memory and created once, its SHA-256 in its name. A task that runs twice, by a retry
or by speculation, meets its own bytes. The last object, `parts/NUMBER.json`, marks the shard as done.
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

from workload.data.tokenizers import Tokenizer, batches, open_tokenizer
from workload.data.tokens import token_dtype
from workload.data.words import CachedTokenizer
from workload.preprocess.documents import ALIKE, REJECTED, Record, fingerprint
from workload.runs.store import Store, create_same, open_store

PARTS = "parts/"
_BATCH_CHARACTERS = 2**20


@dataclass(frozen=True)
class Shipped:
    """A tokenizer sent to tasks, on machines that share no folder with the driver.

    Attributes:
        name: of its folder, or `bytes`.
        files: name and content of each of its files.
        end: see `HuggingFace`.
    """

    name: str
    files: tuple[tuple[str, bytes], ...]
    end: str


@dataclass(frozen=True)
class Object:
    """An object of a shard in the run's folder."""

    file: str
    sha256: str
    size_bytes: int


@dataclass
class Part:
    """Result of a shard.

    Attributes:
        number: of the shard.
        tokens, index, rejected: its objects; None if empty.
        documents: in the shard.
        token_count: of them.
        reasons: number of rejected ones by reason.
        fingerprint: of all documents received, duplicates included.
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
        """All objects of the shard."""
        return [item for item in (self.tokens, self.index, self.rejected) if item]

    def dumps(self) -> bytes:
        """Serialize as JSON; equal parts give equal bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode() + b"\n"

    @classmethod
    def loads(cls, raw: bytes) -> "Part":
        """Parse JSON."""
        part = cls(**json.loads(raw))
        for name in ("tokens", "index", "rejected"):
            if entry := getattr(part, name):
                setattr(part, name, Object(**entry))
        return part


def ship(tokenizer: Tokenizer, end: str) -> Shipped:
    """Return the tokenizer for tasks."""
    return Shipped(tokenizer.name, tuple((file.name, file.read_bytes()) for file in tokenizer.files), end)


@lru_cache(1)
def unpacked(shipped: Shipped) -> Tokenizer:
    """Return the tokenizer, loaded once a process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Spark already has a process for each core
    if not shipped.files:
        return open_tokenizer("bytes")
    with tempfile.TemporaryDirectory(prefix="preprocess-") as folder:
        inside = Path(folder, shipped.name)
        inside.mkdir()
        for name, content in shipped.files:
            (inside / name).write_bytes(content)
        return CachedTokenizer(inside, shipped.end)


def part_name(number: int) -> str:
    """Return the path of a shard's last object."""
    return f"{PARTS}{number:05}.json"


def write(number: int, records: Iterable[Record], url: str, shipped: Shipped, dedup: bool) -> Part:
    """Write a shard from its sorted records.

    Raises:
        StoreError: storage can't be reached or written.
        RunError: an object exists with other bytes.
    """
    store, part, reasons = open_store(url), Part(number), Counter[str]()
    tokens, index, rejected = bytearray(), bytearray(), bytearray()
    tokenizer = unpacked(shipped)
    dtype = token_dtype(tokenizer.vocab_size)

    def unique() -> Iterator[tuple[bytes, str, str]]:
        """Yield documents without duplicates; the first of equal ones, by input and number, is kept."""
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

    for batch in batches(unique(), lambda document: document[2], _BATCH_CHARACTERS):
        for (digest, where, _), row in zip(
            batch, tokenizer.encode([document[2] for document in batch]), strict=True
        ):
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


def _created(store: Store, kind: str, number: int, end: str, content: bytearray) -> Object | None:
    if not content:
        return None
    raw = bytes(content)
    digest = hashlib.sha256(raw).hexdigest()
    name = f"{kind}-{number:05}-{digest[:16]}.{end}"
    create_same(store, name, raw)
    return Object(name, digest, len(raw))


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
