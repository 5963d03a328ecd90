"""Records passed from reading tasks to writing tasks.

A record's key holds its shard and its position in it, so one shuffle brings a shard's documents together,
in an order that depends on the documents alone.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from workload.errors import WorkloadError
from workload.preprocess import filters, script, similarity
from workload.preprocess.config import Config
from workload.preprocess.inputs import Piece
from workload.preprocess.reading import UNUSABLE, InputRow, rows

# Shard, SHA-256 of the normalised text, kind, input, number in it, part of that.
Key = tuple[int, bytes, int, str, int, int]
Record = tuple[Key, Any]
ALIKE, DOCUMENT, REJECTED = range(3)  # kinds; a mark of similarity sorts before its documents


@dataclass
class Read:
    """Statistics of reading.

    Attributes:
        documents: number in shards.
        rejected: number of other lines, rows and files, by reason.
        fingerprint: sum over all documents; see `fingerprint`.
        problems: errors that prevent the run.
    """

    documents: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    fingerprint: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, addend: "Read") -> None:
        """Add another's statistics."""
        self.documents += addend.documents
        self.rejected += addend.rejected
        self.fingerprint = (self.fingerprint + addend.fingerprint) % 2**256
        self.problems += addend.problems

    @property
    def unusable(self) -> int:
        """Number of lines, rows and files without text."""
        return sum(count for reason, count in self.rejected.items() if reason in UNUSABLE)

    def dumps(self) -> bytes:
        """Serialize as JSON; equal statistics give equal bytes."""
        return json.dumps(vars(self), sort_keys=True).encode() + b"\n"

    @classmethod
    def loads(cls, raw: bytes) -> "Read":
        """Parse JSON."""
        read = cls(**json.loads(raw))
        read.rejected = Counter(read.rejected)
        return read


def fingerprint(where: str, text: str) -> int:
    """Hash a document with its name; sums of hashes compare sets of documents in any order."""
    return int.from_bytes(hashlib.sha256(f"{where}\0{text}".encode()).digest(), "big")


def shard_of(digest: bytes, shards: int) -> int:
    """Return the number of a document's shard."""
    return int.from_bytes(digest[:8], "big") % shards


def read(pieces: Iterable[Piece], config: Config, source: bytes) -> Iterator[Record]:
    """Yield the records of some pieces, and last the statistics, for a partition after the shards'."""
    shards, numbers = config.output.shards, Read()
    try:
        for piece in pieces:
            for row in _filtered(rows(piece, config.input), config, source):
                yield _record(row, numbers, shards)
    except WorkloadError as error:  # reported once at the end, instead of a traceback for each attempt
        numbers.problems.append(str(error))
    yield (shards, b"", DOCUMENT, "", 0, 0), numbers.dumps()


def rejected_links(links: dict[str, str], shards: int) -> list[Record]:
    """Return records of links that lead to no file."""
    numbers = Read()
    rows = [InputRow(name, 0, name, reason="link", detail=kind) for name, kind in sorted(links.items())]
    records = [_record(row, numbers, shards) for row in rows]
    return [*records, ((shards, b"", DOCUMENT, "", 0, 0), numbers.dumps())]


def alike(node: bytes, root: bytes, shards: int) -> Record:
    """Return a mark that the documents of hash `node` are similar to those of `root`."""
    return (shard_of(node, shards), node, ALIKE, "", 0, 0), root


def total(records: Sequence[Record]) -> Read:
    """Return the statistics of all tasks."""
    numbers = Read()
    for _, raw in records:
        numbers.add(Read.loads(raw))
    return numbers


def _filtered(candidates: Iterator[InputRow], config: Config, source: bytes) -> Iterator[InputRow]:
    if config.filters.script:
        name = config.filters.script.rpartition("/")[2]
        yield from script.applied(candidates, script.load(source, name), name, config.input)
        return
    for row in candidates:
        reason, detail = ("", "") if row.reason else filters.problem(row.text, config.filters)
        yield InputRow(row.name, row.number, row.where, reason=reason, detail=detail) if reason else row


def _record(row: InputRow, numbers: Read, shards: int) -> Record:
    if row.reason:
        numbers.rejected[row.reason] += row.count
        place = shard_of(hashlib.sha256(row.where.encode()).digest(), shards)
        value = (row.where, row.reason, row.detail, row.count)
        return (place, b"", REJECTED, row.name, row.number, row.part), value
    numbers.documents += 1
    numbers.fingerprint = (numbers.fingerprint + fingerprint(row.where, row.text)) % 2**256
    digest = similarity.key(row.text)
    key = (shard_of(digest, shards), digest, DOCUMENT, row.name, row.number, row.part)
    return key, (row.where, row.text)
