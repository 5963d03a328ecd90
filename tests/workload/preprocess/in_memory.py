"""Runs without Spark: its RDD and context as far as `workload.preprocess` uses them, in this process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.workload.preprocess.starting import command
from workload.data.tokenizers import open_tokenizer
from workload.preprocess import config as configs
from workload.preprocess import job
from workload.preprocess.finish import PreprocessSummary

Partition = Callable[[], Iterable[Any]]


class Rdd:
    """Partitions that are computed when they are read; a shuffle hands records over in a random order."""

    def __init__(self, partitions: list[Partition], seed: int = 0) -> None:
        self._partitions, self._seed = partitions, seed

    @classmethod
    def of(cls, items: Iterable[Any], count: int = 1, seed: int = 0) -> Rdd:
        items = list(items)
        size = -(-len(items) // count)
        return cls([lambda n=n: items[n * size : (n + 1) * size] for n in range(count)], seed)  # type: ignore[misc]

    def read(self, number: int) -> Iterable[Any]:
        return self._partitions[number]()

    def collect(self) -> list[Any]:
        return [item for partition in self._partitions for item in partition()]

    def count(self) -> int:
        return len(self.collect())

    def cache(self) -> Rdd:
        stored = [list(partition()) for partition in self._partitions]
        return Rdd([lambda items=items: items for items in stored], self._seed)  # type: ignore[misc]

    def persist(self, _: object) -> Rdd:
        return self.cache()

    def unpersist(self) -> None: ...

    def union(self, second: Rdd) -> Rdd:
        return Rdd([*self._partitions, *second._partitions], self._seed)

    def map(self, function: Callable[[Any], Any]) -> Rdd:
        return self.flatMap(lambda item: [function(item)])

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> Rdd:  # noqa: N802
        return self.mapPartitionsWithIndex(
            lambda _, items: (made for item in items for made in function(item))
        )

    def mapPartitionsWithIndex(self, function: Callable[[int, Iterable[Any]], Iterable[Any]]) -> Rdd:  # noqa: N802
        numbered = enumerate(self._partitions)
        return Rdd([lambda n=n, p=partition: function(n, p()) for n, partition in numbered], self._seed)  # type: ignore[misc]

    def fold(self, zero: Any, function: Callable[[Any, Any], Any]) -> Any:
        for item in self.collect():
            zero = function(zero, item)
        return zero

    def distinct(self, count: int) -> Rdd:
        return Rdd.of(self._shuffled(set(self.collect())), count, self._seed)

    def groupByKey(self, count: int) -> Rdd:  # noqa: N802
        grouped: dict[Any, list[Any]] = {}
        for key, value in self._shuffled(self.collect()):
            grouped.setdefault(key, []).append(value)
        return Rdd.of(grouped.items(), count, self._seed)

    def repartitionAndSortWithinPartitions(self, count: int, number: Callable[[Any], int]) -> Rdd:  # noqa: N802
        parts: list[list[Any]] = [[] for _ in range(count)]
        for item in self._shuffled(self.collect()):
            parts[number(item[0]) % count].append(item)
        return Rdd([lambda p=part: iter(sorted(p, key=lambda i: i[0])) for part in parts], self._seed)  # type: ignore[misc]

    def _shuffled(self, items: Iterable[Any]) -> list[Any]:
        items = sorted(items)
        random.Random(self._seed).shuffle(items)
        return items


class Context:
    """A SparkContext of some cores; `seed` orders what a shuffle hands over."""

    def __init__(self, cores: int = 2, seed: int = 0) -> None:
        self.defaultParallelism, self._seed = cores, seed

    def parallelize(self, items: Iterable[Any], count: int) -> Rdd:
        return Rdd.of(items, max(1, count), self._seed)

    def broadcast(self, value: Any) -> SimpleNamespace:
        return SimpleNamespace(value=value)

    def runJob(self, rdd: Rdd, function: Callable[[Any], Iterable[Any]], numbers: list[int]) -> list[Any]:  # noqa: N802
        return [item for number in numbers for item in function(rdd.read(number))]


def run(
    out: Path | str,
    source: Path | str,
    context: Context | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **settings: object,
) -> PreprocessSummary:
    """A whole run; `output__shards` is output.shards."""
    config, *words = command(out, source, **settings)
    chosen = configs.load(config, [word for word in words if word != "--set"])
    script = Path(chosen.filters.script).read_bytes() if chosen.filters.script else b""
    tokenizer = open_tokenizer(chosen.tokenizer.name, chosen.tokenizer.end)
    context = context or Context()
    return job.run(context, job.plan(context, chosen, tokenizer, script), progress)
