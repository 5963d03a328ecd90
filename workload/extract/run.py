"""Extraction of a stream; its state is the set of objects in storage.

A stream is cut into ranges, the same on every start; a range becomes one object, created only if
it doesn't exist. So a restarted worker, a second one started by mistake, and a replaced one that
wakes up again all make the same objects, and each is created once.
"""
# mypy: allow-untyped-calls

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from views.counts import counted
from workload.activations import shard, writer
from workload.activations.writer import Content
from workload.data.ragged import offsets
from workload.data.stream import Stream
from workload.extract import checks, packing, ranges
from workload.extract.config import Config
from workload.extract.estimate import estimate
from workload.extract.forward import Forward, Output
from workload.extract.gather import Selection, gathered
from workload.extract.packing import Batch, Shape
from workload.extract.pipeline import Stage, run
from workload.extract.ranges import Range
from workload.extract.weights import Weights
from workload.host.heartbeat import Heartbeat
from workload.runs.store import Store, create_same
from workload.train.record import refuse_other

WRITERS = 8  # shards that are hashed and written at once, each over a connection of its own
_PROGRESS_EVERY_S = 10.0
_NOTE_EVERY_S = 5.0  # Cloud Storage takes a write a second of an object


@dataclass
class ExtractionSummary:
    """Result of a start of an extraction.

    Attributes:
        samples: of the stream, committed when this start ended.
        shards: committed when this start ended.
        made: shards that this start committed.
        taken: shards that it computed but another start committed meanwhile.
        tokens: that it computed.
        places: capacity in tokens of the rows that it computed, padding included.
        wall_s: from its first batch to its last commit.
        stages: with the seconds that each was busy; empty if no work was left.
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
    """Extraction of one worker's stream with one run's settings."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        weights: Weights,
        store: Store,
        progress: Callable[[str], None],
        heartbeat: Heartbeat | None = None,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Check the settings against stream and weights, before any computation.

        Args:
            config: settings.
            stream: of this worker.
            weights: of the model.
            store: of the run.
            progress: receives lines about progress.
            heartbeat: of this worker, if it has one.
            check: raises TakenError if another start has taken the stream over.
            clock: of the intervals between notes.

        Raises:
            WorkloadError: they don't fit together.
        """
        self._config, self._stream, self._weights = config, stream, weights
        self._store, self._progress, self._check = store, progress, check
        self._heartbeat = heartbeat or Heartbeat(None)
        self._arch = weights.arch
        self._wanted, kept_T = checks.selected(config, stream, weights)  # before the run's name is reserved
        self._lengths = stream.lengths()
        self._selection = Selection(stream, kept_T)
        self._kept = self._selection.kept
        self._shape = self._choose()
        self.estimate = estimate(
            sum(self._lengths), sum(self._kept), config.extract, self._wanted, self._arch
        )
        cuts = ranges.cut(
            self._lengths, self._kept, self._shape, self.estimate.token_bytes, config.extract.shard_bytes
        )
        self._ranges = list(cuts)
        self._committed: dict[int, int] = {}  # number to bytes
        self._done_N = np.zeros(len(stream), bool)  # by document
        self._committing = threading.Lock()
        self._reported_s = 0.0
        self._clock, self._noted_s = clock, clock()

    @property
    def worker(self) -> int:
        """Number of the stream, which names the shards' folder."""
        return self._stream.about.number

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the kept tensors, in the order of the computation."""
        return tuple(wanted.name for wanted in self._wanted)

    def go(self) -> ExtractionSummary:
        """Create every missing shard.

        Raises:
            HopelessError: `store` holds another run's output, or another stream's.
            DataError: a shard in it is damaged.
            TakenError: another start has taken the stream over.
            WeightsError: the weights can't be read.
            StoreError: storage can't be used, or is full.
        """
        about = self._settle()
        # The shards in storage are the whole state: make those that are missing.
        names = {shard.name(about.worker, part.number): part.number for part in self._ranges}
        sizes = self._store.sizes(shard.folder(about.worker))
        committed = {name: size for name, size in sizes.items() if name.endswith(shard.SUFFIX)}
        self._refuse_others(about, sorted(committed))
        self._index(about)
        by_number = {part.number: part for part in self._ranges}
        for name in committed.keys() & names.keys():
            self._commit(by_number[names[name]], committed[name])
        missing = [part for part in self._ranges if part.number not in self._committed]
        self._write(self._note())
        chips = jax.local_device_count() if jax.default_backend() == "tpu" else 0
        self._progress(f"output: {self.estimate.text(chips)}")
        self._progress(f"{counted(len(self._ranges), 'shard')}, {len(self._committed)} there already")
        summary = ExtractionSummary(
            tokens=sum(self._lengths[document] for part in missing for document in part.documents),
            places=sum(len(part.batches) for part in missing) * self._shape.tokens,
        )
        if missing:
            summary.stages = [
                Stage("compute", self._computing(sum(len(part.batches) for part in missing))),
                Stage("fetch", self._gathered),
                Stage("write", self._writing(about, summary), WRITERS),
            ]
            begun = time.monotonic()
            run(((part, batch) for part in missing for batch in part.batches), summary.stages)
            summary.wall_s = time.monotonic() - begun
            self._check()
            self._write(self._note())
        done = [part for part in self._ranges if part.number in self._committed]
        summary.shards, summary.samples = len(done), sum(len(part.documents) for part in done)
        return summary

    def _choose(self) -> Shape:
        extract, chips = self._config.extract, jax.local_device_count()
        if not self._lengths:
            return Shape(chips, packing.LANES)
        if not extract.row_tokens:
            return packing.choose(self._lengths, extract.batch_tokens, chips)
        return packing.room(self._lengths, extract.row_tokens, extract.batch_tokens, chips)

    def _settle(self) -> shard.About:
        """Reserve the run's name for these settings, or check that it is."""
        about, names = self._stream.about, self.points
        chips = jax.local_device_count()
        settings = checks.identity(self._config, self._stream, self._weights, names, chips)
        raw = (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode()
        if not self._store.create(checks.IDENTITY, raw):
            checks.refuse_other_run(self._store, settings)
        run_sha256 = hashlib.sha256(raw).hexdigest()
        return shard.About(about.number, 0, len(self._ranges), self._stream.sha256, run_sha256, names)

    def _refuse_others(self, about: shard.About, names: Sequence[str]) -> None:
        """Raise if this worker's folder holds shards of another stream or run.

        Checking one suffices: since then no start got past this with another stream.
        """
        if names:
            recorded = shard.Shard(self._store, names[0]).about
            facts = ("run_sha256", "stream_sha256", "shards")
            was, now = (
                {f"{names[0]} {fact}": getattr(origin, fact) for fact in facts}
                for origin in (recorded, about)
            )
            refuse_other(self._store, was, now)

    def _index(self, about: shard.About) -> None:
        """Write the index of this worker's documents: readers need no shard to count or to find them."""
        order = [document for part in self._ranges for document in part.documents]
        lengths, samples = [self._kept[n] for n in order], [int(self._stream.samples_N[n]) for n in order]
        described = writer.documents(lengths, samples, [self._stream.ids[n] for n in order])
        of_shards = {shard.OF_SHARDS: [offsets(len(part.documents) for part in self._ranges)]}
        raw = b"".join(writer.pack(about, {**described, **of_shards}))
        create_same(self._store, shard.index(about.worker), raw)

    def _computing(
        self, missing: int
    ) -> Callable[[Iterator[tuple[Range, Batch]]], Iterable[tuple[Range, Batch, Output]]]:
        most = self._selection.most(self._ranges, self._shape)
        forward = Forward(self._arch, self._wanted, self._shape, self._config.extract.dtype, most)
        params, program = self._weights.load(forward.arch, forward.params), forward.compile(missing)
        chips, shape = jax.local_devices(), self._shape
        self._progress(
            f"{len(chips)} x {chips[0].device_kind}; attention {forward.attention}:"
            f" {forward.attention_reason}; {shape.rows} rows of {shape.length} tokens;"
            f" layers 0 to {forward.arch.layers - 1} of {self._arch.layers},"
            f" {'whole on each chip' if forward.whole else 'gathered from all chips'}"
        )

        def begun(part: Range, batch: Batch) -> tuple[Range, Batch, Output]:
            output = program(params, *forward.place(batch, self._stream, self._selection.kept_T))
            for array in jax.tree.leaves(output):
                for of_chip in array.addressable_shards:
                    of_chip.data.copy_to_host_async()
            return part, batch, output

        def done(computed: tuple[Range, Batch, Output]) -> tuple[Range, Batch, Output]:
            jax.block_until_ready(computed[2].counts_C)
            return computed

        def compute(batches: Iterator[tuple[Range, Batch]]) -> Iterable[tuple[Range, Batch, Output]]:
            before: tuple[Range, Batch, Output] | None = None
            for part, batch in batches:
                current = begun(part, batch)
                if before:  # computed while this one was placed
                    yield done(before)
                before = current
            if before:
                yield done(before)

        return compute

    def _gathered(self, outputs: Iterator[tuple[Range, Batch, Output]]) -> Iterable[tuple[Range, Content]]:
        points = {wanted.name: wanted.shape(self._arch) for wanted in self._wanted}
        return gathered(outputs, self._selection, self._shape, points)

    def _writing(
        self, about: shard.About, summary: ExtractionSummary
    ) -> Callable[[Iterator[tuple[Range, Content]]], Iterable[None]]:
        begun, already = time.monotonic(), len(self._committed)

        def write(contents: Iterator[tuple[Range, Content]]) -> Iterable[None]:
            for part, content in contents:
                raw = writer.pack(replace(about, number=part.number), content.tensors())
                self._check()
                made = self._store.create(shard.name(about.worker, part.number), raw)
                with self._committing:
                    summary.made += made
                    summary.taken += not made
                    self._commit(part, sum(map(len, raw)))
                    note = self._note()
                    self._report(begun, already)
                    if due := self._clock() >= self._noted_s + _NOTE_EVERY_S:
                        self._noted_s = self._clock()
                if due:  # while other threads commit
                    self._check()  # a replaced worker must not write its progress
                    self._write(note)
                yield None

        return write

    def _commit(self, part: Range, size_bytes: int) -> None:
        self._committed[part.number] = size_bytes
        self._done_N[part.documents] = True

    def _report(self, begun: float, already: int) -> None:
        done, total = len(self._committed), len(self._ranges)
        if time.monotonic() > self._reported_s + _PROGRESS_EVERY_S or done == total:
            self._reported_s = time.monotonic()
            left_s = (time.monotonic() - begun) / max(1, done - already) * (total - done)
            self._progress(f"{done} of {total} shards, {left_s / 60:.0f} min left")

    def _note(self) -> bytes:
        """Return this worker's progress, for people; report it to the heartbeat."""
        count, total = int(self._done_N.sum()), len(self._stream)
        first_missing = total if count == total else int(self._done_N.argmin())
        worker = self._stream.about.number
        status = {
            "worker_id": worker,
            "last_processed_sample_idx": int(self._stream.samples_N[first_missing - 1])
            if first_missing
            else -1,
            "total_samples_processed": count,
            "total_shards": len(self._committed),
            "dataset_path": self._stream.url,
            "status": "completed" if count == total else "in_progress",
            "samples": total,
            "shards": len(self._ranges),
        }
        self._heartbeat.report(
            samples=count,
            of_samples=total,
            shards=len(self._committed),
            size_bytes=sum(self._committed.values()),
        )
        return (json.dumps(status, indent=2) + "\n").encode()

    def _write(self, note: bytes) -> None:
        """Store a note, which is never read back."""
        self._store.write(f"checkpoints/checkpoint_worker_{self.worker}.json", note)
