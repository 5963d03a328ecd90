"""An extraction makes every shard once, the same bytes whoever makes it, of what the model computes."""

import hashlib
import json
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workload.extracting import ARCH, CONFIG, extract, in_many_shards, make_stream, save_weights
from workload.__main__ import main
from workload.activations import shard
from workload.activations.shard import Shard
from workload.activations.statistics import Moments
from workload.data import stream as streams
from workload.data.stream import Stream
from workload.errors import ConfigError, DataError, HopelessError, TakenError, WeightsError
from workload.extract import packing, points, run
from workload.extract.run import Extraction, ExtractionSummary
from workload.model import decoder, huggingface
from workload.runs.lease import of_stream
from workload.runs.store import FolderStore, Store
from workload.train.base import Folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    return save_weights(folder / "model", ARCH)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    path = tmp_path_factory.mktemp("stream") / "stream_003.safetensors"
    path.write_bytes(make_stream(np.random.default_rng(1).integers(1, 120, 60).tolist()))
    return streams.read(str(path))


@pytest.fixture(scope="module")
def whole(stream: Stream, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    store = FolderStore(tmp_path_factory.mktemp("whole"))
    summary = extract(CONFIG, stream, weights, store)
    assert summary.made == summary.shards > 2
    assert summary.samples == len(stream)
    return store


def alone(weights: Path, tokens_L: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """A document by itself; no position sees the padding behind it."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = decoder.shapes(ARCH)
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), shapes)
    tokens_1xL = np.pad(tokens_L, (0, 128 - len(tokens_L)))[None]
    result = capture(huggingface.load(weights, ARCH, params), tokens_1xL, np.zeros((1, 128), np.int32))
    length = len(tokens_L)
    return {
        name: np.asarray(value)[0, :length] if name == "final_norm" else np.asarray(value)[:, 0, :length]
        for name, value in result.items()
    }


POINTS = {"resid_post": [0, 1, 2, 3], "mlp_out": [1], "attn_z": [2], "final_norm": []}
capture = jax.jit(lambda params, tokens, segments: decoder.capture(params, tokens, segments, ARCH, POINTS))


def shards(store: Store) -> list[Shard]:
    return [Shard(store, name) for name in store.list(shard.folder(3))]


def test_every_document_is_there_once_with_its_tokens(whole: FolderStore, stream: Stream) -> None:
    seen = {}
    for item in shards(whole):
        assert item.problems() == []
        for place, name in enumerate(item.ids):
            assert name not in seen
            seen[name] = (item.samples[place], item.document(place, "tokens").tolist())
            length = len(seen[name][1])
            assert item.document(place, "positions").tolist() == list(range(length))
    desired = {name: (100 + n, stream.document(n).tolist()) for n, name in enumerate(stream.ids)}
    assert seen == desired


def test_what_is_kept_is_what_the_model_computes_of_a_document_alone(
    whole: FolderStore, stream: Stream, weights: Path
) -> None:
    item = shards(whole)[1]
    for place, name in [*enumerate(item.ids)][:6]:
        tokens_L = stream.document(stream.ids.index(name))
        expected = alone(weights, tokens_L)
        stored = {point: item.document(place, point) for point in item.about.points}
        for n in range(4):
            close(stored[f"resid_post.{n}"], expected["resid_post"][n])
        close(stored["mlp_out.1"], expected["mlp_out"][0])
        close(stored["attn_z.2.h3"], expected["attn_z"][0][:, 3])
        close(stored["final_norm"], expected["final_norm"])


def close(result: NDArray[Any], expected: NDArray[Any]) -> None:
    assert result.shape == expected.shape
    assert np.linalg.norm(result - expected) <= 1e-5 * np.linalg.norm(expected)


def test_what_is_kept_in_bfloat16_is_the_float32_one_rounded_on_the_way(
    whole: FolderStore, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path)
    extract(replace(CONFIG, extract=replace(CONFIG.extract, dtype="bfloat16")), stream, weights, store)
    exact = {
        name: item.document(place, "resid_post.3")
        for item in shards(whole)
        for place, name in enumerate(item.ids)
    }
    for item in shards(store):
        assert item.problems() == []
        for place, name in enumerate(item.ids):
            stored = item.document(place, "resid_post.3")
            assert stored.dtype.name == "bfloat16"
            error = np.linalg.norm(stored.astype(np.float32) - exact[name]) / np.linalg.norm(exact[name])
            assert 1e-4 < error < 0.028


def test_statistics_are_of_all_that_is_kept_and_merge(whole: FolderStore) -> None:
    everything = shards(whole)
    values = np.concatenate([item.read("resid_post.2") for item in everything]).astype(np.float64)
    merged = sum((item.moments("resid_post.2") for item in everything), Moments.none((32,)))
    assert merged.count == len(values)
    np.testing.assert_allclose(merged.mean, values.mean(axis=0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(merged.variance, values.var(axis=0), rtol=1e-5)


def test_a_start_makes_what_is_not_there_and_the_same_bytes(
    whole: FolderStore, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path)
    names = whole.list("")
    extract(CONFIG, stream, weights, store)
    before = {name: store.read(name) for name in names}
    assert before == {name: whole.read(name) for name in names}
    gone = shard.name(3, 2)
    store.delete(gone)
    summary = extract(CONFIG, stream, weights, store)
    assert (summary.made, summary.taken) == (1, 0)
    assert {name: store.read(name) for name in names} == before
    assert extract(CONFIG, stream, weights, store).made == 0


def test_two_at_once_make_each_shard_once(
    whole: FolderStore, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path)
    result: list[ExtractionSummary] = []
    pair = [
        threading.Thread(target=lambda: result.append(extract(CONFIG, stream, weights, store)))
        for _ in range(2)
    ]
    for item in pair:
        item.start()
    for item in pair:
        item.join()
    total = result[0].made + result[1].made
    assert total == len(whole.list(shard.folder(3)))
    assert {name: store.read(name) for name in whole.list("")} == {
        name: whole.read(name) for name in whole.list("")
    }


def test_one_that_was_replaced_ends_before_it_commits_anything(
    whole: FolderStore, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    """A machine that stood still, and was taken for dead: the one made for it is at work by now."""
    store = FolderStore(tmp_path)
    newer = of_stream(store, 3, "tpu-b")
    with of_stream(store, 3, "tpu-b", every_s=60.0) as older:
        newer.take()
        with pytest.raises(TakenError, match="on tpu-b has taken stream 3 of this run over; this start ends"):
            extract(CONFIG, stream, weights, store, older.check)
        assert store.list(shard.folder(3)) == []
    extract(CONFIG, stream, weights, store, newer.check)
    newer.release()
    assert {name: store.read(name) for name in store.list("")} == {
        name: whole.read(name) for name in whole.list("")
    }


def test_a_stream_that_another_is_at_work_on_is_refused_and_another_stream_is_not(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    (tmp_path / "mine.toml").write_text(
        f'[model]\nweights = "{weights}"\n[extract]\npoints = ["mlp_out.0"]\n'
    )
    for number in (3, 4):
        (tmp_path / f"stream_00{number}.safetensors").write_bytes(make_stream([5, 60, 33], number=number))

    def start(number: int) -> int:
        stream = str(tmp_path / f"stream_00{number}.safetensors")
        line = [str(tmp_path / "mine.toml"), "--stream", stream, "--dir", str(tmp_path / "out")]
        return main(["extract", *line])

    reference = of_stream(FolderStore(tmp_path / "out/extractions/mine"), 3, "tpu-a", every_s=0.1)
    reference._me |= {"boot": "another machine's", "pid": 7}
    with reference:
        assert start(3) == 2
        assert "process 7 on tpu-a is at work on stream 3 of this run\n" in capsys.readouterr().err
        assert start(4) == 0
    assert start(3) == 0


def test_nothing_after_the_last_layer_wanted_is_loaded(
    stream: Stream, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    original = huggingface.Weights.read
    monkeypatch.setattr(
        huggingface.Weights,
        "read",
        lambda self, name, index: (loaded.append(name), original(self, name, index))[1],
    )
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=("mlp_out.1",)))
    extract(config, stream, weights, FolderStore(tmp_path))
    assert any("layers.1." in name for name in loaded)
    assert not any("layers.2." in name or "layers.3." in name for name in loaded)


def test_the_checkpoint_says_what_is_committed(whole: FolderStore, stream: Stream) -> None:
    output = json.loads(whole.read("checkpoints/checkpoint_worker_3.json"))
    assert output == {
        "worker_id": 3,
        "last_processed_sample_idx": 159,
        "total_samples_processed": 60,
        "total_shards": len(whole.list(shard.folder(3))),
        "dataset_path": stream.url,
        "status": "completed",
        "samples": 60,
        "shards": len(whole.list(shard.folder(3))),
    }


@pytest.mark.parametrize(("shard_s", "every"), [(0.0, None), (2.5, 2), (5.0, 1)])
def test_a_note_is_written_every_five_seconds_and_at_the_end_while_other_threads_commit(
    shard_s: float, every: int | None, stream: Stream, weights: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(run, "WRITERS", 1)
    notes: list[int] = []

    class Noted(FolderStore):
        def write(self, name: str, content: Any) -> None:
            assert not extraction._committing.locked()
            notes.append(json.loads(content)["total_shards"])
            super().write(name, content)

    extraction = Extraction(
        in_many_shards(CONFIG), stream, Folder(weights), Noted(tmp_path), lambda _: None,
        clock=lambda: shard_s * len(extraction._committed) if notes else 0.0,
    )  # fmt: skip
    made = extraction.go().made
    assert made > 4
    assert notes == [0, *(range(every, made + 1, every) if every else ()), made]


def test_another_run_of_the_same_name_is_refused(whole: FolderStore, stream: Stream, weights: Path) -> None:
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=("resid_pre.1",)))
    with pytest.raises(
        HopelessError, match=r"begun with other settings: extract.points was \['resid_post.0'"
    ):
        extract(config, stream, weights, whole)


@pytest.mark.parametrize("was", [{"packing": 0}, {}])
def test_a_run_that_was_packed_otherwise_is_refused(
    was: dict[str, int], whole: FolderStore, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    """Its shards hold other documents: what is left of them would not be all that isn't there."""
    store = FolderStore(tmp_path)
    store.write(shard.name(3, 1), whole.read(shard.name(3, 1)))
    settings = json.loads(whole.read("config.json"))
    settings.pop("packing", None)
    store.write("config.json", json.dumps(settings | was).encode())
    output = f"other settings: packing was {was.get('packing')}, is {packing.VERSION}\n"
    with pytest.raises(HopelessError, match=output):
        extract(CONFIG, stream, weights, store)
    assert store.list(shard.folder(3)) == [shard.name(3, 1)]


def test_the_cuts_of_a_version_stay_as_they_are(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    drawn = random.Random(5)
    lengths = [int(300 + 0.12 * n * drawn.random()) for n in range(5000)]  # for which every constant counts
    (tmp_path / "stream_003.safetensors").write_bytes(make_stream(lengths))
    stream = streams.read(str(tmp_path / "stream_003.safetensors"))
    cuts = []
    small = replace(CONFIG.extract, shard_bytes=10**7, batch_tokens=8192)
    large, rows = replace(small, batch_tokens=16384), replace(small, row_tokens=1024, dtype="bfloat16")
    for settings in (large, small, rows):
        config = replace(CONFIG, extract=settings)
        item = Extraction(config, stream, Folder(weights), FolderStore(tmp_path), lambda _: None)
        cuts.append([part.batches for part in item._ranges])
    digest = hashlib.sha256(repr(cuts).encode()).hexdigest()[:16]
    assert (packing.VERSION, digest) == (2, "b7edfe258f9a565d"), (
        "documents are cut into other shards: a run begun before would continue without some of them."
        " fix: take the change back, or raise packing.VERSION and write the new digest here"
    )


def test_a_batch_has_no_more_rows_than_documents_could_fill() -> None:
    for shape in (packing.choose([7, 9, 12], 10**12), packing.room([7, 9, 12], 128, 10**12, 1)):
        assert shape == packing.Shape(3, 128)
    assert packing.room([7, 9, 12], 128, 10**12, 4).rows == 4


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (["resid_pos.1"], "names no point of the model\n    fix: one of resid_post"),
        (["resid_post.4"], "the model has layers 0 to 3"),
        (["resid_post"], "the model has layers 0 to 3\n    fix: e.g. resid_post.3, or resid_post.*"),
        (["mlp_out.1.h0"], "mlp_out has no heads\n    fix: those of query, key, value, attn_z have"),
        (["attn_z.1.h4"], "attn_z has heads h0 to h3"),
        (["key.1.h2"], "key has heads h0 to h1"),
        ([], "is empty"),
        (["re:resid_(pre"], "is not a regular expression: missing )"),
        (
            ["re:resid"],
            "matches no point of the model\n    fix: whole names match: resid_pre.0 to final_norm",
        ),
    ],
)
def test_points_that_the_model_has_not(
    points: list[str], message: str, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=tuple(points)))
    with pytest.raises(ConfigError) as refused:
        extract(config, stream, weights, FolderStore(tmp_path))
    assert message in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("word", "names"),
    [
        (r"re:resid_(pre|post)\.[02]", ["resid_pre.0", "resid_post.0", "resid_pre.2", "resid_post.2"]),
        ("re:final.*", ["final_norm"]),
        ("final_norm,resid_post.1", ["resid_post.1", "final_norm"]),
        (r"re:attn_z\.1.*", ["attn_z.1"]),
        (r"re:attn_z\.1\.h[13]", ["attn_z.1.h1", "attn_z.1.h3"]),
    ],
)
def test_a_word_selects_points_by_their_whole_names(word: str, names: list[str]) -> None:
    wanted, problems = points.parse([word], ARCH)
    assert ([item.name for item in wanted], problems) == (names, [])


def test_a_document_longer_than_a_row_is_refused_by_name(
    stream: Stream, weights: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, extract=replace(CONFIG.extract, row_tokens=64))
    with pytest.raises(ConfigError, match=r"less than the longest document, 'doc-\d+' of 11\d tokens"):
        extract(config, stream, weights, FolderStore(tmp_path))


def test_a_stream_of_another_tokenizer_is_refused(weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "stream_003.safetensors"
    path.write_bytes(make_stream([5, 6], vocab_size=301))
    with pytest.raises(ConfigError, match=r"was made with 301 tokens, .* knows 300"):
        extract(CONFIG, streams.read(str(path)), weights, FolderStore(tmp_path))


def test_a_shard_that_is_cut_short_is_named(whole: FolderStore, tmp_path: Path) -> None:
    name = shard.name(3, 1)
    store = FolderStore(tmp_path)
    store.write(name, whole.read(name)[:-100])
    with pytest.raises(DataError, match=r"shard_0001.safetensors: is cut short\n    fix: remove it"):
        Shard(store, name).problems()


def test_samples_that_were_dealt_otherwise_are_another_run(
    whole: FolderStore, stream: Stream, weights: Path
) -> None:
    rival = replace(stream, about=replace(stream.about, dealt_sha256="7" * 64))
    with pytest.raises(HopelessError, match=r"streams.dealt_sha256 was 666"):
        extract(CONFIG, rival, weights, whole)


def test_a_stream_that_changed_since_its_shards_were_made_is_refused(
    whole: FolderStore, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path)
    for name in ("config.json", shard.name(3, 1)):
        store.write(name, whole.read(name))
    rival = replace(stream, sha256="7" * 64)
    output = (
        rf"shard_0001.safetensors stream_sha256 was {stream.sha256}, is 7+\n    fix: give the new run another"
    )
    with pytest.raises(HopelessError, match=output):
        extract(CONFIG, rival, weights, store)
    assert store.list(shard.folder(3)) == [shard.name(3, 1)]


def test_shards_without_their_runs_identity_are_another_runs(
    whole: FolderStore, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path)
    store.write(shard.name(3, 1), whole.read(shard.name(3, 1)))
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=("resid_pre.1",)))
    with pytest.raises(HopelessError, match=r"shard_0001.safetensors run_sha256 was \w+, is"):
        extract(config, stream, weights, store)


def test_a_stream_that_isnt_the_one_that_was_dealt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    line = ["data", "streams", "--source", str(tmp_path / "s.jsonl"), "--out", str(tmp_path / "streams")]
    assert main(line) == 0
    path = tmp_path / "streams" / "stream_000.safetensors"
    streams.read(str(path))
    path.write_bytes(make_stream([5, 6]))
    with pytest.raises(DataError, match=r"differs from the stream in streams.json beside it\n    fix: put"):
        streams.read(str(path))
    (tmp_path / "streams" / "streams.json").write_text("[]")
    with pytest.raises(DataError, match=r"streams.json: is damaged"):
        streams.read(str(path))


def test_weights_of_another_architecture_are_refused_with_each_reason(stream: Stream, tmp_path: Path) -> None:
    weights = save_weights(tmp_path / "weights", ARCH)
    config = weights / "config.json"
    output = config.read_text().replace('"model_type": "qwen2"', '"model_type": "gpt2"')
    config.write_text(output.replace('"hidden_act": "silu"', '"hidden_act": "gelu"'))
    with pytest.raises(ConfigError) as refused:
        extract(CONFIG, stream, weights, FolderStore(tmp_path / "run"))
    assert 'model_type = "gpt2": must be one of llama, mistral, qwen2, ' in str(refused.value)
    assert 'hidden_act = "gelu": this decoder supports "silu" only' in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_weights_that_dont_fit_take_no_name(stream: Stream, tmp_path: Path) -> None:
    weights = save_weights(tmp_path / "weights", ARCH)
    config = weights / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 48', '"intermediate_size": 64'))
    with pytest.raises(WeightsError, match="tensors don't fit"):
        extract(CONFIG, stream, weights, FolderStore(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_one_that_stood_still_while_it_wrote_notes_nothing_after_another_took_its_stream(
    stream: Stream, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has it between the second shard and the note of it, which says less than the other's."""
    monkeypatch.setattr(run, "WRITERS", 1)
    monkeypatch.setattr(run, "_NOTE_EVERY_S", 0)
    store, requests = FolderStore(tmp_path), 0

    def check() -> None:
        nonlocal requests
        requests += 1
        if requests == 4:
            store.write(note, b"another's")
            raise TakenError("taken over")

    note = "checkpoints/checkpoint_worker_3.json"
    with pytest.raises(TakenError):
        extract(in_many_shards(CONFIG), stream, weights, store, check)
    assert len(shards(store)) == 2
    assert store.read(note) == b"another's"
