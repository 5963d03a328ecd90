"""What the tasks that read hand to the tasks that write.

A record has a key that says which shard it belongs to and where in it: so one shuffle brings a shard's
documents together, in an order that depends on nothing but them.
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
from workload.preprocess.reading import UNUSABLE, Row, rows

# Shard, SHA-256 of the normalised text, kind, input, number in it, part of that.
Key = tuple[int, bytes, int, str, int, int]
Record = tuple[Key, Any]
ALIKE, DOCUMENT, REJECTED = range(3)  # kinds; a mark that documents are like another comes before them


@dataclass
class Read:
    """What was read, in numbers.

    Attributes:
        documents: that reach the shards.
        rejected: lines, rows and files that don't, by reason.
        fingerprint: see `fingerprint`; of all documents.
        problems: for which the run can't be made.
    """

    documents: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    fingerprint: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Read") -> None:
        """Takes another's numbers in."""
        self.documents += other.documents
        self.rejected += other.rejected
        self.fingerprint = (self.fingerprint + other.fingerprint) % 2**256
        self.problems += other.problems

    @property
    def unusable(self) -> int:
        """Lines, rows and files that hold no text."""
        return sum(count for reason, count in self.rejected.items() if reason in UNUSABLE)

    def dumps(self) -> bytes:
        """As JSON; the same numbers are the same bytes."""
        return json.dumps(vars(self), sort_keys=True).encode() + b"\n"

    @classmethod
    def loads(cls, raw: bytes) -> "Read":
        """From JSON."""
        read = cls(**json.loads(raw))
        read.rejected = Counter(read.rejected)
        return read


def fingerprint(where: str, text: str) -> int:
    """Of a document under its name; sums of them say whether the same documents arrived, in any order."""
    return int.from_bytes(hashlib.sha256(f"{where}\0{text}".encode()).digest(), "big")


def shard_of(digest: bytes, shards: int) -> int:
    """The number of a document's shard."""
    return int.from_bytes(digest[:8], "big") % shards


def read(pieces: Iterable[Piece], config: Config, source: bytes) -> Iterator[Record]:
    """The records of some pieces, and last their numbers, for a partition of its own after the shards'."""
    shards, numbers = config.output.shards, Read()
    try:
        for piece in pieces:
            for row in _chosen(rows(piece, config.input), config, source):
                yield _record(row, numbers, shards)
    except WorkloadError as error:  # one message for people at the end, not a traceback for each attempt
        numbers.problems.append(str(error))
    yield (shards, b"", DOCUMENT, "", 0, 0), numbers.dumps()


def rejected_links(links: dict[str, str], shards: int) -> list[Record]:
    """Links that lead to no file, as records."""
    found = [Row(name, 0, name, reason="link", detail=what) for name, what in sorted(links.items())]
    numbers = Read()
    records = [_record(row, numbers, shards) for row in found]
    return [*records, ((shards, b"", DOCUMENT, "", 0, 0), numbers.dumps())]


def alike(node: bytes, root: bytes, shards: int) -> Record:
    """A mark that the documents of one hash are like those of another."""
    return (shard_of(node, shards), node, ALIKE, "", 0, 0), root


def total(found: Sequence[Record]) -> Read:
    """The numbers of all tasks."""
    numbers = Read()
    for _, raw in found:
        numbers.add(Read.loads(raw))
    return numbers


def _chosen(found: Iterator[Row], config: Config, source: bytes) -> Iterator[Row]:
    if config.filters.script:
        name = config.filters.script.rpartition("/")[2]
        yield from script.applied(found, script.load(source, name), name, config.input)
        return
    for row in found:
        reason, detail = ("", "") if row.reason else filters.problem(row.text, config.filters)
        yield Row(row.name, row.number, row.where, reason=reason, detail=detail) if reason else row


def _record(row: Row, numbers: Read, shards: int) -> Record:
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
