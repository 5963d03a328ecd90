"""A whole run: inputs, duplicates, shards, a check of the output, the ready marker."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from workload.data.tokenizers import Tokenizer
from workload.errors import DataError
from workload.preprocess import components, documents, shards, similarity
from workload.preprocess.config import Config
from workload.preprocess.documents import DOCUMENT, Read, Record
from workload.preprocess.finish import READY, PreprocessSummary, finish
from workload.preprocess.inputs import Looked, listed, look
from workload.preprocess.plan import Plan
from workload.preprocess.shards import PARTS, Part
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store, create_same, open_store

READ = "read.json"
_SHOWN = 20  # problems, of many


def plan(context: Any, config: Config, tokenizer: Tokenizer, script: bytes) -> Plan:
    """List and pin all inputs.

    Raises:
        DataError: there is none, or some can't be read; lists up to twenty.
        StoreError: a bucket can't be listed.
    """
    inputs, links = listed(config.input.sources)
    if not inputs:
        fix = "name a folder or prefix that holds text"
        raise DataError(f"input.sources: {', '.join(config.input.sources)}: holds no file\n    fix: {fix}")
    piece_bytes, given = config.runtime.piece_mib * 2**20, config.input
    spread = context.parallelize(inputs, min(len(inputs), 4 * context.defaultParallelism))
    looked: list[Looked] = spread.map(lambda item: look(item, given, piece_bytes)).collect()
    _refuse([item.problem for item in looked if item.problem])
    pieces = [piece for item in looked for piece in item.pieces]
    return Plan(config, tokenizer, script, [item.input for item in looked], pieces, links)


def run(context: Any, plan: Plan, progress: Callable[[str], None]) -> PreprocessSummary:
    """Create the missing shards, and complete the run; a ready run needs no work.

    Raises:
        DataError: the inputs hold no document, or too many unusable ones; no shard is written then.
        RunError: the folder holds other output, or the script isn't deterministic.
        StoreError: storage can't be reached.
    """
    config = plan.config
    store = open_store(f"{config.output.url.rstrip('/')}/{plan.run}")
    if ready := _read_optional(store, READY):
        return PreprocessSummary.of(store, json.loads(ready), made=0)
    parts = {part.number: part for part in _done(store)}
    if parts:
        progress(f"resumes: {len(parts)} of {config.output.shards} shards are there")
    missing = [number for number in range(config.output.shards) if number not in parts]
    noted = _read_optional(store, READ)
    records_rdd = None if noted and not missing else _records(context, plan)
    numbers = Read.loads(noted) if noted else _numbers(context, plan, records_rdd, store)
    shipped, dedup, url = shards.ship(plan.tokenizer, config.tokenizer.end), config.dedup.method, store.url
    sent = context.broadcast(shipped)

    def write(number: int, records: Iterable[Record]) -> Iterator[Part]:
        yield shards.write(number, records, url, sent.value, dedup != "none")

    made: list[Part] = (
        context.runJob(records_rdd.mapPartitionsWithIndex(write), list, missing) if records_rdd else []
    )
    parts |= {part.number: part for part in made}
    return replace(finish(context, plan, store, numbers, [parts[n] for n in sorted(parts)]), made=len(made))


def _records(context: Any, plan: Plan) -> Any:
    """Return an RDD with a partition for each shard, sorted, and one for the statistics."""
    config, source = plan.config, plan.script
    shard_count = config.output.shards
    pieces = sorted(plan.pieces, key=lambda piece: -piece.size_bytes)
    whole_bytes = sum(piece.size_bytes for piece in pieces)
    count = max(4 * context.defaultParallelism, whole_bytes // (config.runtime.piece_mib * 2**20))
    count = min(config.runtime.partitions or count, len(pieces))
    split = context.parallelize([pieces[number::count] for number in range(count)], count)
    records = split.flatMap(lambda pieces_: documents.read(pieces_, config, source))
    if config.dedup.method == "fuzzy":
        from pyspark import StorageLevel

        records = records.persist(StorageLevel.DISK_ONLY)  # read twice: for signatures and for shards
        records = records.union(_marks(records, config, count))
    if plan.links:
        records = records.union(context.parallelize(documents.rejected_links(plan.links, shard_count), 1))
    return records.repartitionAndSortWithinPartitions(shard_count + 1, lambda key: key[0])


def _marks(records: Any, config: Config, partitions: int) -> Any:
    """Return an RDD of marks: each hash similar to others, with the least of those."""
    rules, count = config.dedup, config.output.shards

    def bands(record: Record) -> Iterator[tuple[bytes, bytes]]:
        key, value = record
        if key[0] < count and key[2] == DOCUMENT:
            signature = similarity.bands(value[1], rules.ngram_words, rules.bands, rules.band_hashes)
            yield from ((band, key[1]) for band in signature)

    edges = records.flatMap(bands).groupByKey(partitions).flatMap(lambda group: components.edges(group[1]))
    roots = components.roots(edges, partitions)
    return roots.map(lambda edge: documents.alike(edge[0], edge[1], count))


def _numbers(context: Any, plan: Plan, records: Any, store: Store) -> Read:
    """Return the statistics of reading, before any shard is written."""
    last = plan.config.output.shards  # only this partition; Spark keeps the readers' output for the others
    numbers = documents.total(context.runJob(records, list, [last]))
    _refuse(sorted(set(numbers.problems)))
    rejected = ", ".join(f"{count} × {reason}" for reason, count in sorted(numbers.rejected.items()))
    if not numbers.documents:
        fix = "name text, JSON lines or Parquet, or loosen the filters"
        of = f"of {len(plan.inputs)} files: {rejected or 'all are empty'}"
        raise DataError(f"input.sources: no document is accepted, {of}\n    fix: {fix}")
    seen, most = numbers.documents + sum(numbers.rejected.values()), plan.config.input.max_unusable_fraction
    if numbers.unusable > most * seen:
        problem = f"{numbers.unusable} of {seen} can't be used: {rejected}"
        fix = "mend the inputs, or raise it; rejected-*.jsonl lists each"
        raise DataError(f"input.max_unusable_fraction = {most:g}: {problem}\n    fix: {fix}")
    create_same(store, READ, numbers.dumps())
    return numbers


def _done(store: Store) -> list[Part]:
    return [Part.loads(store.read(name)) for name in store.list(PARTS) if name.endswith(".json")]


def _read_optional(store: Store, name: str) -> bytes | None:
    try:
        return store.read(name)
    except MissingObjectError:
        return None


def _refuse(problems: list[str]) -> None:
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise DataError("\n".join([*problems[:_SHOWN], *more]))
