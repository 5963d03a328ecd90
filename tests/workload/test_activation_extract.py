"""Defects of kathir-ks/activation-extract that ours hasn't: docs/internals/extraction.md lists the twelve."""

import ast
import gzip
import json
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import workload
from tests.limits import HANG_S
from tests.workload.extracting import (
    ARCH,
    CONFIG,
    Dying,
    extract,
    in_many_shards,
    make_stream,
    save_weights,
)
from tests.workload.slice import cpu_devices
from workload.activations import shard
from workload.activations.reader import Activations
from workload.activations.shard import About, Shard
from workload.activations.statistics import Moments
from workload.activations.writer import Content, pack
from workload.data import stream as streams
from workload.data import tokenizers
from workload.errors import DataError, HopelessError, StoreError
from workload.extract import forward, pipeline, run
from workload.extract.forward import Forward
from workload.extract.packing import Shape
from workload.extract.pipeline import Stage
from workload.extract.points import Wanted
from workload.extract.run import ExtractionSummary
from workload.model import attention, decoder, transformers_config, transformers_export
from workload.model.architecture import Architecture
from workload.model.generation import Generation
from workload.runs.store import FolderStore

SAMPLES = 22
LENGTHS = [100 - n for n in range(SAMPLES)]
NOTE = "checkpoints/checkpoint_worker_3.json"


class OurExtraction:
    """An extraction of a stream in many shards, whose store can fail."""

    def __init__(self, root: Path, weights: Path):
        (root / "stream_003.safetensors").write_bytes(make_stream(LENGTHS))
        self.samples = range(100, 100 + SAMPLES)
        self._stream = streams.read(str(root / "stream_003.safetensors"))
        self._config, self._weights = in_many_shards(CONFIG), weights
        self.store = Dying(root / "run")  # there is no disk that it needs besides

    def start(self, dies_after: int = 1000) -> ExtractionSummary:
        """`config.json` and the index are objects too."""
        self.store.left = dies_after + 2
        return extract(self._config, self._stream, self._weights, self.store)

    def shards(self) -> dict[str, bytes]:
        return {name: self.store.read(name) for name in self.store.list("activations/")}

    def samples_stored(self) -> list[int]:
        return sorted(entry.sample for entry in Activations(self.store.url, self.store))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "model", ARCH)


@pytest.fixture
def extraction(tmp_path: Path, weights: Path) -> OurExtraction:
    return OurExtraction(tmp_path, weights)


def killed(extraction: OurExtraction, after: int) -> None:
    with pytest.raises(StoreError, match="no more"):
        extraction.start(dies_after=after)


def test_an_upload_that_fails_ends_the_start_and_is_made_up_for(
    extraction: OurExtraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_NOTE_EVERY_S", 0)
    killed(extraction, 2)
    output = json.loads(extraction.store.read(NOTE))
    assert (output["total_shards"], output["status"]) == (2, "in_progress")
    unbroken = next(n for n in extraction.samples if n not in extraction.samples_stored()) - 1
    expected = unbroken if unbroken in extraction.samples else -1  # several are uploaded at once
    assert output["last_processed_sample_idx"] == expected
    extraction.start()
    assert extraction.samples_stored() == list(extraction.samples)


def test_a_lost_machine_costs_no_work_that_was_committed(extraction: OurExtraction) -> None:
    killed(extraction, 2)
    committed = extraction.shards()
    extraction.store.write(NOTE, b'{"worker_id": 3, "last_pro')  # a view: never read
    summary = extraction.start()
    assert summary.made == summary.shards - len(committed) < summary.shards
    assert committed.items() <= extraction.shards().items()
    assert json.loads(extraction.store.read(NOTE))["status"] == "completed"


def test_all_chips_of_a_host_compute_and_every_row_keeps_its_documents_name(
    weights: Path, tmp_path: Path
) -> None:
    """On eight devices, with documents that fill no whole number of batches."""
    lengths = [5 + n % 40 for n in range(77)]
    (tmp_path / "stream_003.safetensors").write_bytes(make_stream(lengths))
    stream = streams.read(str(tmp_path / "stream_003.safetensors"))
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=("resid_pre.0",), row_tokens=128))
    with cpu_devices(8):
        extract(config, stream, weights, FolderStore(tmp_path / "run"))
        tokens, _ = Forward(ARCH, [Wanted(0, "resid_pre")], Shape(8, 128), "float32").place(
            (((0,), (1,), (2,))), stream
        )
        assert len(tokens.sharding.device_set) == 8
        assert {part.data.shape[0] for part in tokens.addressable_shards} == {1}

    # The values that enter the first layer show which tokens a row is of.
    embed_VxD = load_file(weights / "model.safetensors")["model.embed_tokens.weight"]
    documents = list(Activations(str(tmp_path / "run")))
    assert sorted(document.id for document in documents) == sorted(stream.ids)
    for document in documents:
        assert np.array_equal(document.tokens, stream.document(stream.ids.index(document.id)))
        assert np.array_equal(document["resid_pre.0"], embed_VxD[document.tokens])


def test_the_next_batch_is_computed_while_one_is_written() -> None:
    begun, seen = threading.Event(), []

    def compute(item: int) -> int:
        if item == 1:
            begun.set()
        return item

    def write(item: int) -> int:
        seen.append(begun.wait(HANG_S))
        return item

    def stage(work: Callable[[int], int]) -> Stage:
        def mapped(coming: Iterator[int]) -> Iterator[int]:
            return map(work, coming)

        return Stage(work.__name__, mapped)

    pipeline.run(range(2), [stage(compute), stage(write)])
    assert seen[0]


def test_a_shard_is_hardly_larger_than_its_values() -> None:
    values_TxD = np.random.default_rng(0).standard_normal((2048, 896)).astype(ml_dtypes.bfloat16)
    content = Content(
        values={"resid_post.0": [values_TxD]},
        tokens_T=np.zeros(2048, np.int32),
        positions_T=np.zeros(2048, np.int32),
        lengths=[512] * 4,
        samples=range(4),
        ids=list("abcd"),
        moments={"resid_post.0": Moments.none((896,))},
    )

    about = About(0, 1, 1, "", "", ("resid_post.0",))
    assert len(b"".join(pack(about, content.tensors()))) <= 1.02 * values_TxD.nbytes  # E3


def test_attention_holds_no_square_of_scores_and_layers_are_one_program() -> None:
    L = 1024

    def program(attend: attention.Attend, layers: int) -> str:
        arch = Architecture(
            layers=layers, d_model=256, heads=4, kv_heads=2, d_ff=256, head_dim=128, vocab_size=9
        )
        params = decoder.shapes(arch, jnp.bfloat16)
        tokens = jax.ShapeDtypeStruct((1, L), jnp.int32)
        desired = {"resid_post": [layers - 1], "query": [0]}
        run = jax.jit(
            lambda params, tokens, segments: decoder.capture(
                params, tokens, segments, arch, desired, attend, jnp.bfloat16
            )
        )
        return run.trace(params, tokens, tokens).lower(lowering_platforms=("tpu",)).as_text()

    def squares(text: str) -> list[str]:
        return re.findall(rf"tensor<(?:\d+x)*{L}x{L}xf32>", text)

    own = program(attention.attend("splash"), 3)
    assert squares(own) == []
    assert squares(program(attention.attend("einsum"), 3)), "the pattern finds those of attention by einsums"
    assert program(attention.attend("splash"), 9).count("dot_general") == own.count("dot_general")
    assert f"tensor<1x1x{L}x4x128xbf16>" in own  # the queries, turned


def test_the_models_own_heads_and_tied_embeddings_are_read() -> None:
    output = transformers_export.config_json(
        replace(ARCH, head_dim=16, tie_embeddings=True), "bfloat16", Generation(longest=512)
    )
    read = transformers_config.architecture(output, "config.json")
    assert (read.K, read.tie_embeddings) == (16, True)
    assert read.d_model // read.heads != read.K


def test_reading_a_shard_runs_nothing_and_a_restart_tokenizes_nothing(
    extraction: OurExtraction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(sys, "ran_by_a_shard", ran, raising=False)
    poisoned = gzip.compress(pickle.dumps(_Poison()))
    pickle.loads(gzip.decompress(poisoned))
    assert ran == ["code"]
    FolderStore(tmp_path).write(shard.name(3, 1), poisoned)
    with pytest.raises(DataError, match="is no shard, or damaged"):
        Shard(FolderStore(tmp_path), shard.name(3, 1))
    assert ran == ["code"]
    package = Path(workload.__file__).parent
    assert {path.name for path in package.rglob("*.py") if _imports_pickle(path)} == {"pickles.py"}
    assert not re.search(r"pickle\.loads?\(", (package / "activations/pickles.py").read_text())

    monkeypatch.setattr(tokenizers, "open_tokenizer", lambda *_: pytest.fail("tokenized again"))
    monkeypatch.setattr(tokenizers.Bytes, "encode_alone", lambda *_: pytest.fail("tokenized again"))
    killed(extraction, 2)
    extraction.start()
    assert extraction.samples_stored() == list(extraction.samples)


class _Poison:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import sys; sys.ran_by_a_shard.append('code')",)


def _imports_pickle(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(isinstance(node, ast.Import) and node.names[0].name == "pickle" for node in nodes)


def test_a_batch_beyond_this_machines_memory_is_refused_before_it_is_computed() -> None:
    """Attention without a kernel holds the square of a row."""
    shape = Shape(1, 1 << 19)
    with pytest.raises(
        HopelessError, match=r"1 rows of 524288 tokens takes \d{4,}\.\d GiB; this machine has [\d.]+\n"
    ):
        Forward(ARCH, [Wanted(0, "resid_post")], shape, "float32").compile()


def test_outputs_beyond_a_chips_memory_are_refused_before_one_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Forward(ARCH, [Wanted(0, "resid_post")], Shape(8, 128), "float32")
    monkeypatch.setattr(forward.sharding, "memory_bytes", lambda _: 32 << 20)
    small.compile()
    large = Forward(ARCH, [Wanted(0, "resid_post")], Shape(512, 128), "float32")
    with pytest.raises(
        HopelessError,
        match=r"512 rows of 128 tokens takes 0\.\d GiB; a chip has 0\.0\n    fix.* another --name",
    ):
        large.compile()
    sizes = {"temp_size_in_bytes": 2 << 20, "output_size_in_bytes": 8 << 20, "argument_size_in_bytes": 0}
    analysis = SimpleNamespace(**sizes)
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda _: analysis)
    small.compile(3)
    for batches in (4, 1000):
        with pytest.raises(HopelessError):
            small.compile(batches)
