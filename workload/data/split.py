"""Split of samples into streams, one for each worker of a fleet.

    workload data streams --source prompts.jsonl --tokenizer Qwen2.5-0.5B/ --streams 8 --out streams/

Sample k goes to stream k mod N, and keeps its number. An unusable sample is rejected: it is in no
stream, and `rejected.jsonl` has its place and the reason. No sample is truncated.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from settings_schema import foreign
from workload.data import stream as streams
from workload.data.sources import REJECTED, Reading, Sample
from workload.data.stream import About
from workload.data.tokenizers import Tokenizer
from workload.errors import DataError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store

INDEX = streams.INDEX
_UPLOADS = 8  # at once
_REPORT_EVERY_S = 15.0
_MOST_ROLES = 255  # of a byte a token
_BATCH = 1024  # samples that are tokenized at once, on all cores


@dataclass(frozen=True)
class SplitRules:
    """Rules of a split.

    Attributes:
        streams: number of streams.
        max_tokens: of a sample; longer samples are rejected; 0: unlimited.
        most_samples: of a stream; 0: unlimited.
    """

    streams: int = 1
    max_tokens: int = 0
    most_samples: int = 0


@dataclass
class _Stream:
    """Content of a stream so far."""

    tokens: list[NDArray[np.int32]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    roles: list[NDArray[np.uint8]] = field(default_factory=list)


@dataclass(frozen=True)
class Split:
    """Result of a split.

    Attributes:
        samples: in streams.
        tokens: of them.
        streams: their files' names.
        rejected: count by reason.
    """

    samples: int
    tokens: int
    streams: tuple[str, ...]
    rejected: dict[str, int]


def split(
    reading: Reading,
    out: Store,
    tokenizer: Tokenizer,
    rules: SplitRules,
    progress: Callable[[str], None] | None = None,
) -> Split:
    """Write `stream_000.safetensors` and so on, `rejected.jsonl`, and `streams.json` last.

    Equal arguments give equal bytes; an existing stream with other bytes is left alone.

    Raises:
        DataError: no source, no usable sample, or `out` holds other streams.
    """
    parts = [_Stream() for _ in range(rules.streams)]
    aside: list[dict[str, str | int]] = []
    reasons: Counter[str] = Counter()
    fix = ""  # of the first rejected sample
    seen: set[str] = set()
    roles: dict[str, int] = {}  # in the order of their first messages, from 1

    def put_aside(number: int, sample: Sample, reason: str, kind: str = "") -> None:
        aside.append({"sample": number, "where": sample.where, "reason": reason})
        reasons[kind or reason.partition(":")[0]] += 1

    # Put each usable sample into its stream, and the others aside.
    begun, due_s = time.monotonic(), 2.0
    for number, sample, tokens in _tokenized(reading, tokenizer, rules):
        part = parts[number % rules.streams]
        if sample.problem:
            fix = fix if aside else sample.fix
            put_aside(number, sample, sample.problem)
        elif not sample.content or not len(tokens):
            put_aside(number, sample, "is empty")
        elif not sample.name.isprintable():
            put_aside(number, sample, "has a name that can't be printed")
        elif sample.name in seen:
            reason = f"is named {sample.name!r} like one before it"
            put_aside(number, sample, reason, "is named like another")
        elif rules.max_tokens and len(tokens) > rules.max_tokens:
            reason = f"has {len(tokens)} tokens, more than {rules.max_tokens}"
            put_aside(number, sample, reason, "is too long")
        else:
            seen.add(sample.name)
            part.tokens.append(tokens.astype(np.int32))
            part.samples.append(number)
            part.ids.append(sample.name)
            part.roles.append(_roles(sample, tokens, tokenizer, roles))
        if progress and (took_s := time.monotonic() - begun) > due_s:
            due_s = took_s + _REPORT_EVERY_S
            progress(f"{number + 1:,} samples, {(number + 1) / took_s:,.0f}/s, {len(aside)} rejected")
    if not seen:
        first = f": {aside[0]['where']} {aside[0]['reason']}" if aside else ""
        fix = fix or "name other sources"
        raise DataError(f"{_named(reading)}: no sample that can be used{first}\n    fix: {fix}")
    if empty := [n for n, part in enumerate(parts) if not part.samples]:
        rule = f"{len(seen)} samples leave stream {empty[0]} empty"
        fix = f"fewer --streams than {rules.streams}: sample k goes to stream k mod their number"
        raise DataError(f"{_named(reading)}: {rule}\n    fix: {fix}")
    # Identity of the split: streams of other sources or settings have another.
    source = _digest(reading.files())
    decides = json.dumps([source, tokenizer.identity, reading.decides, asdict(rules)])
    digest = hashlib.sha256(decides.encode()).hexdigest()
    about = About(
        0,
        rules.streams,
        source,
        digest,
        tokenizer.name,
        tokenizer.identity,
        tokenizer.vocab_size,
        len(aside),
        roles=tuple(roles),
    )
    files = {
        f"stream_{number:03}.safetensors": streams.pack(
            replace(about, number=number), part.tokens, part.samples, part.ids, part.roles
        )
        for number, part in enumerate(parts)
    }
    files[REJECTED] = "".join(json.dumps(entry) + "\n" for entry in aside).encode()
    counted = sum(len(tokens) for part in parts for tokens in part.tokens)
    index = {
        "source_sha256": about.source_sha256,
        "tokenizer": about.tokenizer,
        "tokenizer_sha256": about.tokenizer_sha256,
        "samples": len(seen),
        "tokens": counted,
        "rejected": dict(reasons),
        "sha256": {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()},
    }
    # The index comes last: with it the streams are complete.
    _put_all(out, files, progress)
    if not _indexed(out, index):
        _put(out, INDEX, (json.dumps(index, indent=2) + "\n").encode())
    return Split(len(seen), counted, tuple(sorted(files.keys() - {REJECTED})), dict(reasons))


def _roles(
    sample: Sample, tokens: NDArray[np.uint32], tokenizer: Tokenizer, known: dict[str, int]
) -> NDArray[np.uint8]:
    """Return the number of each token's role, 0 between messages; add roles of messages to `known`."""
    roles_L = np.zeros(len(tokens), np.uint8)
    begins_L = tokenizer.placed([sample.content])[0][1][:, 0] if sample.spans else np.zeros(0)
    for role, begin, end in sample.spans if len(begins_L) == len(tokens) else ():
        if role in known or (len(known) < _MOST_ROLES and role.isprintable()):
            number = known.setdefault(role, len(known) + 1)
            roles_L[(begins_L >= begin) & (begins_L < end)] = number
    return roles_L


def _tokenized(
    reading: Reading, tokenizer: Tokenizer, rules: SplitRules
) -> Iterator[tuple[int, Sample, NDArray[np.uint32]]]:
    batch: list[tuple[int, Sample]] = []
    for number, sample in enumerate(reading.samples()):
        if rules.most_samples and number >= rules.most_samples * rules.streams:
            break
        batch.append((number, sample))
        if len(batch) == _BATCH:
            yield from _encoded(batch, tokenizer)
            batch = []
    yield from _encoded(batch, tokenizer)


def _encoded(
    batch: Sequence[tuple[int, Sample]], tokenizer: Tokenizer
) -> Iterator[tuple[int, Sample, NDArray[np.uint32]]]:
    tokens = tokenizer.encode_alone([sample.content for _, sample in batch])
    for (number, sample), row in zip(batch, tokens, strict=True):
        yield number, sample, row


def _put_all(out: Store, files: Mapping[str, bytes], progress: Callable[[str], None] | None) -> None:
    """Write several files at once; each with its checksum, which the store compares."""
    reported = time.monotonic()
    with ThreadPoolExecutor(_UPLOADS) as pool:
        running = [pool.submit(_put, out, name, raw) for name, raw in files.items()]
        try:
            for number, future in enumerate(running, 1):
                future.result()
                if progress and time.monotonic() > reported + 2:
                    reported = time.monotonic()
                    progress(f"{number} of {len(files)} files written")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _indexed(out: Store, index: Mapping[str, Any]) -> bool:
    """Return True if the index is there, perhaps of an earlier version that had fewer facts."""
    try:
        was = foreign.parse(out.read(INDEX))
    except (MissingObjectError, ValueError):
        return False
    return bool(was) and {key: index.get(key) for key in was} == was


def _put(out: Store, name: str, raw: bytes) -> None:
    if not out.create(name, raw) and out.read(name) != raw:
        fix = "name a new place for other sources or settings"
        raise DataError(f"{out.url}/{name}: exists with other bytes\n    fix: {fix}")


def _digest(files: Sequence[Path]) -> str:
    """Return the sha256 of the sources' contents, in their order."""
    sha = hashlib.sha256()
    for path in files:
        with path.open("rb") as opened:
            sha.update(hashlib.file_digest(opened, "sha256").digest())
    return sha.hexdigest()


def _named(reading: Reading) -> str:
    return f"--source {', '.join(map(str, reading.paths))}"
