"""Extracts a stream: what is done is what lies in storage, whoever put it there.

A stream is cut into ranges, always the same ones; a range becomes one object, created only if there
is none. So a worker that is killed and started again, a second one that was started by mistake, and
one that wakes up after it was replaced all make the same objects, and each is made once.
"""
# mypy: allow-untyped-calls

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from workload.activations import shard
from workload.activations.statistics import Moments
from workload.data.stream import Stream
from workload.errors import ConfigError, HopelessError, Problem
from workload.extract import packing, points, ranges
from workload.extract.config import Config
from workload.extract.forward import Forward, Output
from workload.extract.packing import Batch, Shape
from workload.extract.pipeline import Stage, run
from workload.extract.ranges import Range
from workload.extract.weights import Weights
from workload.host.heartbeat import Heartbeat
from workload.runs.record import refuse_other
from workload.runs.store import Store

IDENTITY = "config.json"
_TOLD_EVERY_S = 10.0


@dataclass
class Summary:
    """What a start of an extraction did.

    Attributes:
        samples: of the stream, committed at the end, by whomever.
        shards: alike.
        made: shards that this start committed.
        taken: shards that it computed and found committed by another meanwhile.
        tokens: that it computed.
        places: for tokens in the rows that it computed, padding included.
        wall_s: from its first batch to its last commit.
        stages: with the seconds that each was busy; none where nothing was left to do.
    """

    samples: int = 0
    shards: int = 0
    made: int = 0
    taken: int = 0
    tokens: int = 0
    places: int = 0
    wall_s: float = 0.0
    stages: list[Stage] = field(default_factory=list)


class Extraction:
    """One worker's stream, one run's settings."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        weights: Weights,
        store: Store,
        say: Callable[[str], None],
        heartbeat: Heartbeat | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        """Checks that they fit together, before anything is computed.

        Args:
            config: what to keep.
            stream: of this worker.
            weights: of the model.
            store: of the run.
            say: takes a line about progress.
            word: of this worker, if it has one.
            check: raises TakenError when another start has taken the stream over.

        Raises:
            WorkloadError: they don't.
        """
        self._config, self._stream, self._weights = config, stream, weights
        self._store, self._say, self._heartbeat, self._check = store, say, heartbeat or Heartbeat(None), check
        self._arch = weights.arch
        self._wanted, problems = points.parse(config.extract.points, self._arch)
        self._lengths = stream.lengths()
        problems += self._problems()
        if problems:
            raise ConfigError("workload extract", problems)
        weights.check()  # before the run's name is taken for them
        self._shape = self._choose()
        numbers = sum(int(np.prod(one.shape(self._arch))) for one in self._wanted)
        token_bytes = numbers * (2 if config.extract.dtype == "bfloat16" else 4) + 8
        self._ranges = list(ranges.cut(self._lengths, self._shape, token_bytes, config.extract.shard_bytes))
        self._committed: dict[int, int] = {}  # bytes of each
        self._told = 0.0

    @property
    def worker(self) -> int:
        """Whose shards these are: the number of the stream."""
        return self._stream.about.number

    @property
    def points(self) -> tuple[str, ...]:
        """What is kept, by name, in the order of the computation."""
        return tuple(one.name for one in self._wanted)

    def go(self) -> Summary:
        """Makes every shard that isn't there.

        Raises:
            HopelessError: `store` holds another run's output, or another stream's.
            DataError: a shard in it is damaged.
            TakenError: another start has taken the stream over.
            WeightsError: the weights can't be read.
            StoreError: storage can't be used, or is full.
        """
        about = self._settle()
        names = {shard.name(about.worker, part.number): part.number for part in self._ranges}
        found = self._store.sizes(shard.folder(about.worker))
        there = {name: size for name, size in found.items() if name.endswith(shard.SUFFIX)}
        self._committed = {names[name]: size for name, size in there.items() if name in names}
        self._refuse_others(about, sorted(there))
        left = [part for part in self._ranges if part.number not in self._committed]
        self._note()
        self._say(f"{len(self._ranges)} shards, {len(self._committed)} there already")
        summary = Summary(
            tokens=sum(part.tokens for part in left),
            places=sum(len(part.batches) for part in left) * self._shape.tokens,
        )
        if left:
            summary.stages = [
                Stage("compute", self._computing()),
                Stage("fetch", self._fetch),
                Stage("write", self._writing(about, summary)),
            ]
            begun = time.monotonic()
            run(((part, batch) for part in left for batch in part.batches), summary.stages)
            summary.wall_s = time.monotonic() - begun
        done = [part for part in self._ranges if part.number in self._committed]
        summary.shards, summary.samples = len(done), sum(len(part.documents) for part in done)
        return summary

    def _problems(self) -> list[Problem]:
        problems = []
        stream, rows, longest = self._stream, self._config.extract.row_tokens, max(self._lengths, default=0)
        if rows and longest > rows:
            worst = stream.ids[self._lengths.index(longest)]
            rule = f"is less than the longest document, {worst!r} of {longest} tokens; none is cut short"
            fix = f"{longest} or more, 0 to have it chosen, or set long documents aside: --max-tokens {rows}"
            problems.append(Problem("extract.row_tokens", str(rows), rule, fix))
        if stream.about.vocab_size > self._arch.vocab_size:
            known = f"{self._weights.name} knows {self._arch.vocab_size}"
            rule = f"was made with {stream.about.vocab_size} tokens, {known}"
            fix = "make the streams with the model's own tokenizer"
            problems.append(Problem("--stream", stream.url, rule, fix))
        return problems

    def _choose(self) -> Shape:
        extract, chips = self._config.extract, jax.local_device_count()
        if not self._lengths:
            return Shape(chips, packing.LANES)
        if not extract.row_tokens:
            return packing.choose(self._lengths, extract.batch_tokens, chips)
        return packing.room(self._lengths, extract.row_tokens, extract.batch_tokens, chips)

    def _settle(self) -> shard.About:
        """Takes the run's name for these settings, or finds it taken for them."""
        about, extract = self._stream.about, asdict(self._config.extract)
        names = self.points
        mine = {
            "model": asdict(self._arch) | self._weights.identity(),
            "extract": extract | {"points": names},
            "chips": jax.local_device_count(),
            "packing": packing.VERSION,
            "streams": {
                "dealt_sha256": about.dealt_sha256,
                "source_sha256": about.source_sha256,
                "tokenizer_sha256": about.tokenizer_sha256,
                "count": about.streams,
            },
        }
        raw = (json.dumps(mine, indent=2, sort_keys=True) + "\n").encode()
        if not self._store.create(IDENTITY, raw):
            try:
                theirs = json.loads(self._store.read(IDENTITY))
            except ValueError as error:
                where, fix = f"{self._store.url}/{IDENTITY}", "give the new run another --name"
                raise HopelessError(f"{where}: is damaged: {error}\n    fix: {fix}") from None
            refuse_other(self._store, theirs, json.loads(raw))
        run_sha256 = hashlib.sha256(raw).hexdigest()
        return shard.About(about.number, 0, len(self._ranges), self._stream.sha256, run_sha256, names)

    def _refuse_others(self, about: shard.About, there: Sequence[str]) -> None:
        """Ends where shards of another stream or run stand under this worker's names.

        One is looked at: since then no start came past this with another stream.
        """
        if there:
            theirs = shard.Shard(self._store, there[0]).about
            facts = ("run_sha256", "stream_sha256", "shards")
            was, now = (
                {f"{there[0]} {fact}": getattr(one, fact) for fact in facts} for one in (theirs, about)
            )
            refuse_other(self._store, was, now)

    def _computing(self) -> Callable[[Iterator[tuple[Range, Batch]]], Iterable[tuple[Range, Batch, Output]]]:
        forward = Forward(self._arch, self._wanted, self._shape, self._config.extract.dtype)
        params, program = self._weights.load(forward.arch, forward.params), forward.compile()
        chips, shape = jax.local_devices(), self._shape
        self._say(
            f"{len(chips)} x {chips[0].device_kind}; attention {forward.attention}:"
            f" {forward.attention_reason}; {shape.rows} rows of {shape.length} tokens;"
            f" layers 0 to {forward.arch.layers - 1} of {self._arch.layers}"
        )

        def done(output: Output) -> Output:
            jax.block_until_ready(output.counts_C)
            return output

        def begun(batch: Batch, pool: ThreadPoolExecutor | None) -> Callable[[], Output]:
            placed = forward.place(batch, self._stream)
            if pool:
                return pool.submit(lambda: done(program(params, *placed))).result
            return partial(done, program(params, *placed))

        def compute(batches: Iterator[tuple[Range, Batch]]) -> Iterable[tuple[Range, Batch, Output]]:
            # A CPU runs one after another what one thread sends it, and two passes fill one another's gaps:
            # a fifth more tokens a second. Chips that meet within a pass have to get all in one order.
            alone = len(chips) == 1 and chips[0].platform == "cpu"
            before: tuple[Range, Batch, Callable[[], Output]] | None = None
            with ThreadPoolExecutor(2) if alone else nullcontext() as pool:
                for part, batch in batches:
                    here = part, batch, begun(batch, pool)
                    if before:  # which was computed while this one was put in place
                        yield *before[:2], before[2]()
                    before = here
                if before:
                    yield *before[:2], before[2]()

        return compute

    def _fetch(self, outputs: Iterator[tuple[Range, Batch, Output]]) -> Iterable[tuple[Range, shard.Content]]:
        """From the devices, without padding, in the order of the documents, a range at a time."""

        def nothing() -> tuple[dict[str, list[NDArray[Any]]], dict[str, Moments]]:
            shapes = {one.name: one.shape(self._arch) for one in self._wanted}
            return {name: [] for name in shapes}, {name: Moments.none(shapes[name]) for name in shapes}

        pieces, moments = nothing()
        batches = 0
        for part, batch, output in outputs:
            used = [sum(self._lengths[document] for document in row) for row in batch]
            counts_C = np.asarray(output.counts_C)
            for name in pieces:
                value_RxL = np.asarray(output.values[name])
                pieces[name] += [value_RxL[row, :length] for row, length in enumerate(used)]
                means, deviations = np.asarray(output.means[name]), np.asarray(output.deviations[name])
                for count, mean, deviation in zip(counts_C, means, deviations, strict=True):
                    moments[name] += Moments(
                        int(count), mean.astype(np.float64), deviation.astype(np.float64)
                    )
            batches += 1
            if batches == len(part.batches):
                yield part, self._content(part, pieces, moments)
                pieces, moments = nothing()
                batches = 0

    def _content(
        self, part: Range, pieces: dict[str, list[NDArray[Any]]], moments: dict[str, Moments]
    ) -> shard.Content:
        stream, documents = self._stream, part.documents
        return shard.Content(
            values={name: np.concatenate(some) for name, some in pieces.items()},
            tokens_T=np.concatenate([stream.document(one) for one in documents]),
            lengths=[self._lengths[one] for one in documents],
            samples=[int(stream.samples_N[one]) for one in documents],
            ids=[stream.ids[one] for one in documents],
            moments=moments,
        )

    def _writing(
        self, about: shard.About, summary: Summary
    ) -> Callable[[Iterator[tuple[Range, shard.Content]]], Iterable[None]]:
        begun, already = time.monotonic(), len(self._committed)

        def write(contents: Iterator[tuple[Range, shard.Content]]) -> Iterable[None]:
            for part, content in contents:
                raw = shard.pack(replace(about, number=part.number), content)
                self._check()
                if self._store.create(shard.name(about.worker, part.number), raw):
                    summary.made += 1
                else:
                    summary.taken += 1
                self._committed[part.number] = len(raw)
                self._check()  # who stood still meanwhile has nothing to note any more
                self._note()
                self._tell(begun, already)
                yield None

        return write

    def _tell(self, begun: float, already: int) -> None:
        done, total = len(self._committed), len(self._ranges)
        if time.monotonic() > self._told + _TOLD_EVERY_S or done == total:
            self._told = time.monotonic()
            left_s = (time.monotonic() - begun) / max(1, done - already) * (total - done)
            self._say(f"{done} of {total} shards, {left_s / 60:.0f} min left")

    def _note(self) -> None:
        """Writes down how far this worker is: for people, and never read to decide anything."""
        committed = [part for part in self._ranges if part.number in self._committed]
        done = {document for part in committed for document in part.documents}
        missing = next((n for n in range(len(self._stream)) if n not in done), len(self._stream))
        worker = self._stream.about.number
        status = {
            "worker_id": worker,
            "last_processed_sample_idx": int(self._stream.samples_N[missing - 1]) if missing else -1,
            "total_samples_processed": len(done),
            "total_shards": len(committed),
            "dataset_path": self._stream.url,
            "status": "completed" if len(done) == len(self._stream) else "in_progress",
            "samples": len(self._stream),
            "shards": len(self._ranges),
        }
        self._heartbeat.report(
            samples=len(done),
            of_samples=len(self._stream),
            shards=len(committed),
            size_bytes=sum(self._committed.values()),
        )
        name = f"checkpoints/checkpoint_worker_{worker}.json"
        self._store.write(name, (json.dumps(status, indent=2) + "\n").encode())
