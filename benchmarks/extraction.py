"""E1 to E4, E7, E8: cost of capture, overlap, files, padding and random access; activation-extract's files.

The model is Qwen2.5-0.5B at its true size, on the CPUs at hand. Forward passes are timed in float32, which
a CPU computes as it is; runs and files are of bfloat16, as packaged.
"""
# mypy: allow-untyped-calls

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import jax
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks import qwen
from benchmarks.machine import described, spread
from benchmarks.peers import activation_extract
from workload.activations import shard
from workload.activations.reader import Activations
from workload.activations.statistics import Moments
from workload.activations.writer import Content, pack
from workload.data.stream import read as read_stream
from workload.extract import config as configs
from workload.extract import packing, points
from workload.extract.forward import Forward
from workload.extract.packing import Shape
from workload.extract.run import Extraction, ExtractionSummary
from workload.model import decoder
from workload.model.points import LAYER_POINTS
from workload.runs.store import FolderStore, open_store
from workload.train.base import Folder

GOALS = {"E1": 1.03, "E2": 1.10, "E3": 1.02, "E4": 1.05, "E7": 1.1, "E8": 10.0}
CAPTURED = Shape(1, 1024)  # of the batch that E1 computes and E8 stores
PAIRS = 5  # of E1, a round
BATCH_TOKENS, SHARD_BYTES = 2048, 80_000_000  # of the runs that E2, E3 and E7 look at
# What runs keep, and of how many tokens at least: as packaged, bound by computing; and all of one layer,
# which is written as fast as computed, and of which more are needed for the stages to be under way at once.
KEPT = {
    "every layer's output": (("resid_post.*",), 6144),
    "all of layer 0": (tuple(f"{name}.0" for name in LAYER_POINTS), 49_152),
}
LOGNORMAL = {"median": 400, "sigma": 0.9, "documents": 5000, "most": 4096}
POINT = "resid_post.12"  # that random access asks for


def measure(rounds: int) -> dict[str, Any]:
    """All of them."""
    weights = qwen.weights()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        root = Path(folder)
        forward, stored = forward_and_files(root, weights, rounds)
        mapping = {"E1": forward, "E8": stored, **runs(root, weights, rounds), "E4": padding()}
    return {"goals": GOALS, **mapping, "on": described(["jax", "jaxlib", "numpy", "safetensors"])}


def forward_and_files(root: Path, weights: Path, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """E1: a forward pass that captures over one that doesn't, in pairs; and E8, on what it captured.

    E1 counts seconds of processor, which do not grow while others use the machine.
    """
    desired, _ = points.parse(KEPT["every layer's output"][0], qwen.ARCH)
    forward = Forward(qwen.ARCH, desired, CAPTURED, "float32")
    params, capturing = Folder(weights).load(forward.arch, forward.params), forward.compile()
    short = [item for item in qwen.documents_of(16 * CAPTURED.tokens) if len(item) <= CAPTURED.length]
    stream = read_stream(str(qwen.write_stream(root / "short.safetensors", short)))
    batch = next(packing.batches(stream.lengths(), CAPTURED))
    tokens, segments = forward.place(batch, stream)

    def bare(params: decoder.Params, tokens_RxL: jax.Array, segments_RxL: jax.Array) -> jax.Array:
        desired = {"final_norm": [qwen.ARCH.layers]}  # all layers, of which nothing else is kept
        stored = decoder.capture(
            params, tokens_RxL, segments_RxL, qwen.ARCH, desired, forward.attend, forward.dtype
        )
        return stored["final_norm"].sum()

    plain = jax.jit(bare).lower(params, tokens, segments).compile()
    passes: dict[str, Callable[[], Any]] = {
        "bare": lambda: jax.block_until_ready(plain(params, tokens, segments)),
        "capturing": lambda: jax.block_until_ready(capturing(params, tokens, segments).values),
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for entry in passes.values():
        entry()
    for number in range(rounds * PAIRS):
        # Whichever comes first finds the other's memory in the caches.
        for name in sorted(passes, reverse=bool(number % 2)):
            seconds[name].append(_seconds(passes[name], time.process_time))
        print(f"E1 {number + 1}: {seconds['capturing'][-1] / seconds['bare'][-1]:.3f}", file=sys.stderr)
    ratios = [took / alone for took, alone in zip(seconds["capturing"], seconds["bare"], strict=True)]
    used = [sum(len(stream.document(n)) for n in row) for row in batch]
    output = capturing(params, tokens, segments)
    values = {name: np.asarray(value)[0, : used[0]] for name, value in output.values.items()}
    lengths = [len(stream.document(n)) for n in batch[0]]
    times = {name: spread(several) for name, several in seconds.items()}
    return {"ratio": spread(ratios), "cpu_s": times}, storing(root, values, lengths, rounds)


def storing(
    root: Path, values: dict[str, NDArray[np.float32]], lengths: Sequence[int], rounds: int
) -> dict[str, Any]:
    """E8: a shard by activation-extract's design and by ours, of equal float32 arrays; ours in bfloat16."""
    layers = {int(name.rpartition(".")[2]): value for name, value in values.items()}
    halves = {name: value.astype(ml_dtypes.bfloat16) for name, value in values.items()}
    moments = {name: Moments.none(value.shape[1:]) for name, value in values.items()}
    digest = hashlib.sha256().hexdigest()
    about = shard.About(0, 1, 1, digest, digest, tuple(values))
    store = FolderStore(root / "storing")
    store.write("begun", b"")

    def write_ours(name: str, kept: dict[str, NDArray[Any]]) -> None:
        tokens_T = np.zeros(sum(lengths), np.int32)
        names = [str(n) for n in range(len(lengths))]
        values = {point: [value] for point, value in kept.items()}
        content = Content(values, tokens_T, tokens_T, lengths, range(len(lengths)), names, moments)
        store.delete(name)
        assert store.create(name, pack(about, content.tensors()))

    writers: dict[str, Callable[[], None]] = {
        "activation_extract": lambda: activation_extract.write(
            root / "storing" / "activation_extract", layers, lengths
        ),
        "ours, float32": lambda: write_ours("ours, float32", dict(values)),
        "ours, bfloat16": lambda: write_ours("ours, bfloat16", dict(halves)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    for number in range(rounds):
        for name, write in writers.items():
            seconds[name].append(_seconds(write))
        print(f"E8 {number + 1}: {[second[-1] for second in seconds.values()]}", file=sys.stderr)
    return {
        "array_bytes": sum(value.nbytes for value in values.values()),
        "tokens": sum(lengths),
        "seconds": {name: spread(several) for name, several in seconds.items()},
        "bytes": {name: (root / "storing" / name).stat().st_size for name in writers},
        "times_faster": {
            name: median(seconds["activation_extract"]) / median(seconds[name]) for name in list(writers)[1:]
        },
    }


def runs(root: Path, weights: Path, rounds: int) -> dict[str, Any]:
    """E2, E3 and E7 of extractions into a folder, with their settings as packaged."""
    overlap: dict[str, Any] = {}
    stored: dict[str, float] = {}
    for kind, (saved, tokens) in KEPT.items():
        stream = read_stream(
            str(qwen.write_stream(root / f"{tokens}.safetensors", qwen.documents_of(tokens)))
        )
        config = configs.load("qwen2.5-0.5b.toml")
        extract = replace(config.extract, points=saved, batch_tokens=BATCH_TOKENS, shard_bytes=SHARD_BYTES)
        summaries: list[ExtractionSummary] = []
        for number in range(rounds):
            store = open_store(str(root / "runs" / str(len(overlap)) / str(number)))
            begin = Extraction(
                replace(config, extract=extract), stream, Folder(weights), store, lambda _: None
            )
            summaries.append(begin.go())
            busy = {stage.name: round(stage.busy_s, 1) for stage in summaries[-1].stages}
            print(f"E2 {kind}: {summaries[-1].wall_s:.1f} s, {busy}", file=sys.stderr, flush=True)
        overlap[kind] = {
            "ratio": spread(
                [summary.wall_s / max(stage.busy_s for stage in summary.stages) for summary in summaries]
            ),
            "wall_s": spread([summary.wall_s for summary in summaries]),
            "busy_s": {
                stage.name: spread([summary.stages[n].busy_s for summary in summaries])
                for n, stage in enumerate(summaries[0].stages)
            },
        }
        desired, _ = points.parse(saved, qwen.ARCH)
        useful = 2 * summaries[0].tokens * sum(int(np.prod(item.shape(qwen.ARCH))) for item in desired)
        files = (root / "runs" / str(len(overlap) - 1) / "0" / "activations").rglob("*.safetensors")
        stored[kind] = sum(path.stat().st_size for path in files) / useful
    return {"E2": overlap, "E3": stored, "E7": random_access(root / "runs" / "0" / "0")}


class Counting(FolderStore):
    """A folder that counts what is read of it."""

    read_bytes = 0

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Store.read`."""
        raw = super().read(name, start, end)
        self.read_bytes += len(raw)
        return raw


def random_access(run: Path) -> dict[str, Any]:
    """E7: half of a run's documents at one point, one by one, as they come to mind."""
    store = Counting(run)
    activations = Activations(str(run), store)
    names = sorted(document.id for document in activations)
    assert activations[names[0]].id == names[0]  # reads the index
    opened = store.read_bytes
    order = np.random.default_rng(qwen.SEED).permutation(len(names))[: len(names) // 2]
    desired = sum(activations[names[n]][POINT].nbytes for n in order)
    return {
        "ratio": store.read_bytes / desired,
        "opening_bytes_a_shard": opened / len(activations.names),
        "shards": len(activations.names),
        "documents": len(order),
        "bytes_wanted": desired,
    }


def padding() -> dict[str, float]:
    """E4: of all documents at hand, and of lengths as documents' often are, with batches as packaged."""
    draw = np.random.default_rng(qwen.SEED)
    drawn = draw.lognormal(np.log(LOGNORMAL["median"]), LOGNORMAL["sigma"], int(LOGNORMAL["documents"]))
    lengths = {
        "functions of Python's library": [len(document) for document in qwen.documents()],
        "lognormal": np.clip(drawn, 1, LOGNORMAL["most"]).astype(int).tolist(),
    }
    mapping = {}
    for name, several in lengths.items():
        shape = packing.choose(several, configs.ExtractConfig().batch_tokens)
        mapping[name] = sum(shape.tokens for _ in packing.batches(several, shape)) / sum(several)
    return mapping


def _seconds(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    begun = clock()
    run()
    return clock() - begun
