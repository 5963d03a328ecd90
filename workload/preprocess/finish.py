"""End of a run: check of the shards, then the manifest and, last, the ready marker."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workload.data.tokens import MANIFEST, Shard, token_dtype
from workload.data.tokens import VERSION as MANIFEST_VERSION
from workload.errors import RunError
from workload.preprocess.documents import Read
from workload.preprocess.plan import Plan
from workload.preprocess.shards import Object, Part
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store, create_same, open_store

READY, INPUTS = "_READY", "inputs.jsonl"


@dataclass(frozen=True)
class PreprocessSummary:
    """Result of a run.

    Attributes:
        url: of its folder.
        manifest: content of manifest.json.
        made: shards that this start wrote.
    """

    url: str
    manifest: dict[str, Any]
    made: int

    @classmethod
    def of(cls, store: Store, ready: dict[str, Any], made: int) -> "PreprocessSummary":
        """Return the summary of a ready run. Raises RunError if its manifest has changed."""
        raw = store.read(MANIFEST)
        if hashlib.sha256(raw).hexdigest() != ready["manifest_sha256"]:
            fix = f"remove {store.url}, and start again"
            raise RunError(f"{store.url}/{MANIFEST}: differs from the one that {READY} names\n    fix: {fix}")
        return cls(store.url, json.loads(raw), made)


def finish(context: Any, plan: Plan, store: Store, numbers: Read, parts: Sequence[Part]) -> PreprocessSummary:
    """Check all output, and make it valid.

    Raises:
        RunError: objects are missing, changed or unexpected, or the counts don't match.
    """
    _check_numbers(store, numbers, parts)
    _check_objects(context, store, [item for part in parts for item in part.objects])
    lines = [{"name": item.name, "bytes": item.size_bytes, "version": item.version} for item in plan.inputs]
    create_same(store, INPUTS, "".join(json.dumps(line) + "\n" for line in lines).encode())
    for file in plan.tokenizer.files:  # needed to use the model
        create_same(store, file.name, file.read_bytes())
    manifest = _manifest(plan, parts)
    raw = json.dumps(manifest, indent=2).encode() + b"\n"
    create_same(store, MANIFEST, raw)
    ready = {"run": plan.run, "manifest_sha256": hashlib.sha256(raw).hexdigest()}
    create_same(store, READY, json.dumps(ready).encode() + b"\n")
    return PreprocessSummary(store.url, manifest, 0)


def _check_numbers(store: Store, numbers: Read, parts: Sequence[Part]) -> None:
    """Check that every document read is in a shard or a duplicate, and no others are."""
    reasons = sum((Counter(part.reasons) for part in parts), Counter[str]())
    repeated = reasons.pop("repeats", 0) + reasons.pop("alike", 0)
    arrived = sum(part.documents for part in parts) + repeated
    fingerprint = sum(part.fingerprint for part in parts) % 2**256
    if (arrived, fingerprint, reasons) != (numbers.documents, numbers.fingerprint, numbers.rejected):
        rule = f"{numbers.documents} documents were read and {arrived} written, or their texts differ"
        fix = "a script must give the same documents each time; mend it, and remove this folder"
        raise RunError(f"{store.url}: {rule}\n    fix: {fix}")


def _check_objects(context: Any, store: Store, objects: Sequence[Object]) -> None:
    """Check that each object has its bytes, and that there are no others."""
    url = store.url

    def problem(item: Object) -> str:
        try:
            digest = hashlib.sha256(open_store(url).read(item.file)).hexdigest()
        except MissingObjectError:
            return f"{url}/{item.file}: is missing"
        return "" if digest == item.sha256 else f"{url}/{item.file}: has SHA-256 {digest}, not {item.sha256}"

    spread = context.parallelize(objects, min(len(objects), 4 * context.defaultParallelism))
    problems = [problem for problem in spread.map(problem).collect() if problem]
    named = {item.file for item in objects}
    for kind in ("tokens-", "index-", "rejected-"):
        unexpected = set(store.list(kind)) - named
        problems += [
            f"{url}/{name}: two attempts at a shard wrote different bytes" for name in sorted(unexpected)
        ]
    if problems:
        fix = "remove the folder, and start again; a script must give the same documents each time"
        raise RunError("\n".join([*problems[:20], f"    fix: {fix}"]))


def _manifest(plan: Plan, parts: Sequence[Part]) -> dict[str, Any]:
    """Return the manifest of `workload data prepare`, with more facts of the run."""
    tokenizer, length = plan.tokenizer, plan.config.output.sequence_length
    full = [part for part in parts if part.tokens]
    shards = [Shard(part.tokens.file, part.token_count, part.tokens.sha256) for part in full if part.tokens]
    examples = sum(max(0, part.token_count - 1) // length for part in full)
    reasons = sum((Counter(part.reasons) for part in parts), Counter[str]())
    return {
        "version": MANIFEST_VERSION,
        "tokenizer": tokenizer.name,
        "tokenizer_sha256": tokenizer.identity,
        "vocab_size": tokenizer.vocab_size,
        "begin_of_document": list(tokenizer.begin_of_document),
        "end_of_document": tokenizer.end_of_document,
        "dtype": token_dtype(tokenizer.vocab_size).str,
        "documents": sum(part.documents for part in parts),
        "tokens": sum(part.token_count for part in parts),
        "shards": [shard.content() for shard in shards],
        "run": plan.run,
        **plan.decides(),
        "input_files": len(plan.inputs),
        "input_bytes": sum(item.size_bytes for item in plan.inputs),
        "indexes": [vars(part.index) for part in full if part.index],
        "rejected": dict(sorted(reasons.items())),
        "rejected_lists": [vars(part.rejected) for part in parts if part.rejected],
        "sequence_length": length,
        "examples": examples,
        # Tokens at the ends of shards that are no example's target.
        "unused_tokens": sum(part.token_count - 1 for part in full) - examples * length,
    }
