"""Kept tensors are found by document, reading little else; damaged and missing shards are named."""

import json
import pickle
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workload.extracting import ARCH, CONFIG, extract, make_stream, save_weights
from workload.__main__ import main
from workload.activations import shard
from workload.activations.batches import _of_size, batches
from workload.activations.reader import Activations
from workload.activations.statistics import Moments
from workload.activations.writer import Content, pack
from workload.data import stream as streams
from workload.data.stream import Stream
from workload.errors import DataError
from workload.runs.store import FolderStore, Store


class Counting(FolderStore):
    """Counts the bytes that are read."""

    bytes_read = reads = 0

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        raw = super().read(name, start, end)
        self.bytes_read += len(raw)
        self.reads += 1
        return raw


@pytest.mark.parametrize("size", [1, 4, 5, 10, 25, 100])
def test_a_group_is_free_before_the_next_is_mixed_and_each_token_is_in_a_batch(size: int) -> None:
    before: list[weakref.ref[Any]] = []

    def groups() -> Iterator[tuple[Any, ...]]:
        for n in range(3):
            assert all(array() is None for array in before)
            array = np.arange(10 * n, 10 * n + 10)
            before.append(weakref.ref(array))
            yield (array,)
            del array

    seen: list[int] = []
    for (batch,) in _of_size(groups(), size):
        assert len(batch) == min(size, 30 - len(seen))
        seen += batch.tolist()
    assert seen == list(range(30))
    assert len(before) == 3


@pytest.fixture
def run(extracted: Path) -> Path:
    return extracted


def make(root: Path) -> Stream:
    (root / "stream_003.safetensors").write_bytes(make_stream([40 + n % 80 for n in range(60)]))
    return streams.read(str(root / "stream_003.safetensors"))


def copy_all(run: Path, store: Store, prefix: str = "") -> None:
    for name in FolderStore(run).list(prefix):
        store.write(name, FolderStore(run).read(name))


def places(raw: bytes) -> dict[str, slice]:
    """Places of the tensors in a file."""
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    offsets = {key: entry["data_offsets"] for key, entry in header.items() if key != "__metadata__"}
    return {key: slice(start + begin, start + end) for key, (begin, end) in offsets.items()}


def test_a_document_is_found_by_its_name(run: Path, tmp_path: Path) -> None:
    activations = Activations(str(run))
    assert len(activations) == 60
    document = activations["doc-7"]
    assert (document.id, document.sample, len(document.tokens)) == ("doc-7", 107, 47)
    assert document["resid_post.2"].shape == (47, ARCH.d_model)
    assert document["attn_z.2.h3"].shape == (47, ARCH.K)
    assert sorted(item.id for item in activations) == sorted(f"doc-{n}" for n in range(60))
    with pytest.raises(DataError, match="holds no document 'doc-60'\n    fix: wait until it is extracted"):
        activations["doc-60"]
    config = json.loads((run / "config.json").read_text())
    config["streams"]["count"] = 0
    whole = FolderStore(tmp_path)
    copy_all(run, whole)
    whole.write("config.json", json.dumps(config).encode())
    with pytest.raises(DataError, match="holds no document 'doc-60'\n    fix: see the names"):
        Activations(str(tmp_path))["doc-60"]
    with pytest.raises(DataError, match=r"keeps no resid_post.9\n    fix: one of resid_post.3, "):
        document["resid_post.9"]
    with pytest.raises(DataError, match=r"keeps no token_ids\n    fix: one of tokens"):
        document["token_ids"]
    with pytest.raises(DataError, match=r"keeps no zzz\n    fix: one of .*final_norm, tokens, positions$"):
        document["zzz"]


def test_random_access_reads_little_more_than_what_is_wanted(run: Path) -> None:
    """E7, once the headers are read: at most 1.1 times the bytes wanted."""
    store = Counting(run)
    activations = Activations(str(run), store)
    assert len([*activations])
    store.bytes_read, desired = 0, 0
    for name in ("doc-3", "doc-50", "doc-11", "doc-29"):
        desired += activations[name]["resid_post.3"].nbytes
    assert desired <= store.bytes_read <= 1.1 * desired


def test_an_iteration_reads_each_tensor_of_a_shard_once_and_holds_one_shard(run: Path) -> None:
    store = Counting(run)
    activations = Activations(str(run), store)
    documents, shards = [*activations], [*activations.shards()]
    store.reads = store.bytes_read = 0
    read = [(item.id, item.tokens, item["mlp_out.1"], item["final_norm"]) for item in activations]
    assert store.reads == 3 * len(shards) < 3 * len(documents)
    assert store.bytes_read == sum(array.nbytes for _, *arrays in read for array in arrays)
    assert all(array.base is None for _, *arrays in read for array in arrays), "each would hold a shard"
    for (name, tokens, *points), item in zip(read, documents, strict=True):
        assert name == item.id
        assert np.array_equal(tokens, item.tokens)
        assert [*map(bytes, points)] == [bytes(item["mlp_out.1"]), bytes(item["final_norm"])]
    for item in activations:
        assert item["mlp_out.1"].any()
        assert sum(shard_of.held is not None for shard_of in shards) == 1
        break
    store.bytes_read = 0
    assert item["mlp_out.1"].nbytes == store.bytes_read, "of one document alone"


def test_threads_read_a_tensor_of_an_iteration_once_and_a_pickled_document_has_no_tensors(run: Path) -> None:
    both, store = threading.Barrier(2), Counting(run)

    def met(*_: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)

    item = next(iterated := iter(Activations(str(run), store)))
    read, store.reads = store.read, 0
    store.read = lambda *place: (met(), read(*place))[1]  # type: ignore[assignment,method-assign]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: item["mlp_out.1"].tobytes(), range(2))
    assert (store.reads, first) == (1, second)
    del store.read
    copied = pickle.loads(pickle.dumps(item))
    assert (item.shard.held is None, copied.shard.held) == (False, None)
    assert copied["mlp_out.1"].tobytes() == first
    iterated.close()  # type: ignore[attr-defined]


def test_moments_of_a_run_are_of_all_of_its_tokens(run: Path) -> None:
    activations = Activations(str(run))
    values = np.concatenate([document["mlp_out.1"] for document in activations]).astype(np.float64)
    moments = activations.moments("mlp_out.1")
    assert moments.count == len(values)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-5)


def test_norms_are_of_tokens_and_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [*Activations(str(run))]
    values = np.concatenate([document["attn_z.2.h3"] for document in documents]).astype(np.float64)
    norms = np.linalg.norm(values, axis=1)
    assert main(["activations", "stats", str(run), "--json"]) == 0
    output = capsys.readouterr()
    numbers = json.loads(output.out)["attn_z.2.h3"]
    assert numbers["rms_norm"] == pytest.approx(np.sqrt((norms**2).mean()), rel=1e-5)
    assert numbers["norm_of_mean"] == pytest.approx(np.linalg.norm(values.mean(axis=0)), rel=1e-5)
    assert "lacks all shards of 7 streams" in output.err
    assert main(["activations", "stats", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["point", "tokens", "rms", "norm", "|mean|", "std"]
    assert f"{numbers['rms_norm']:.4g}" in next(line for line in lines if line.startswith("attn_z.2.h3 "))
    assert main(["activations", "show", str(run), "--document", "doc-7"]) == 0
    of_token = np.linalg.norm(Activations(str(run))["doc-7"]["attn_z.2.h3"].astype(np.float32), axis=1).mean()
    assert f" mean norm of a token {of_token:.4g}\n" in capsys.readouterr().out


def test_the_commands_show_count_and_verify(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["activations", "show", str(run)]) == 0
    assert "tpu_3 shard 1 of " in capsys.readouterr().out
    assert main(["activations", "show", str(run), "--document", "doc-7"]) == 0
    assert "doc-7: sample 107, 47 tokens" in capsys.readouterr().out
    assert main(["activations", "stats", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mlp_out.1"]["tokens"] == sum(40 + n % 80 for n in range(60))
    assert main(["activations", "verify", str(run)]) == 1
    output = capsys.readouterr().out
    assert "of 8 streams, 0, 1, 2, 4, 5, 6, 7 have no shard yet" in output
    assert "60 documents, 1 problem\n" in output


def test_verify_names_what_is_damaged_missing_or_there_twice(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = FolderStore(tmp_path)
    copy_all(run, broken, "activations/")
    first, second, third = (shard.name(3, number) for number in (1, 2, 3))
    raw = bytearray(broken.read(first))
    raw[-1] ^= 1
    broken.write(first, bytes(raw))
    broken.write(shard.name(4, 1), broken.read(third))
    broken.delete(second)
    assert main(["activations", "verify", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert f"{first}: " in output
    assert "isn't what was written" in output
    assert re.search(r"tpu_3: 1 of \d+ shards are missing: 2\n", output)
    assert f"is also in {third}" in output
    assert "config.json: is missing or damaged" in output


def test_no_folder_no_extraction_and_no_shard_yet_are_told_apart(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such folder\n    fix: name the folder that holds act"):
        Activations(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="holds no activations/, so it is no extraction\n    fix: name "):
        Activations(str(tmp_path))
    copy_all(run, FolderStore(tmp_path), "config.json")
    with pytest.raises(DataError, match="no shard is committed here yet\n    fix: wait until"):
        Activations(str(tmp_path))


def test_a_shard_is_checked_in_one_request_and_a_long_one_in_pieces(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Counting(run)
    name = shard.name(3, 1)
    size = (run / name).stat().st_size
    item, result = Activations(str(run), store).check(name)
    assert (store.reads, result, item.ids) == (1, [], shard.Shard(store, name).ids)
    monkeypatch.setattr(shard, "_PIECE", 2**12)
    store.bytes_read = store.reads = 0
    assert Activations(str(run), store).check(name)[1] == []
    assert store.reads <= 2 * size // 2**12
    assert store.bytes_read <= 1.5 * size


@pytest.mark.parametrize("piece", [2**9, 2**12, 2**23])
def test_no_byte_of_a_shard_goes_unchecked(
    piece: int, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "_PIECE", piece)
    name, store = shard.name(3, 2), FolderStore(tmp_path)
    whole = FolderStore(run).read(name)
    for key in ("resid_post.0", "attn_z.2.h3", "positions", "mean/mlp_out.1"):
        tensor = places(whole)[key]
        for place in (tensor.start, (tensor.start + tensor.stop) // 2, tensor.stop - 1):
            raw = bytearray(whole)
            raw[place] ^= 1
            store.write(name, bytes(raw))
            assert shard.Shard.checked(store, name)[1] == [f"{key} isn't what was written"]


def test_verify_tells_another_runs_shards_and_another_streams(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = FolderStore(tmp_path / "mixed")
    copy_all(run, mixed)
    (tmp_path / "stream_003.safetensors").write_bytes(make_stream([40 + n % 50 for n in range(60)]))
    rival = streams.read(str(tmp_path / "stream_003.safetensors"))
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=("mlp_in.0",)))
    extract(config, rival, save_weights(tmp_path / "weights", ARCH), FolderStore(tmp_path / "other"))
    reference = shard.name(3, 2)
    mixed.write(reference, FolderStore(tmp_path / "other").read(reference))
    assert main(["activations", "verify", str(tmp_path / "mixed")]) == 1
    output = capsys.readouterr().out
    assert f"{reference}: belongs to another run than config.json" in output
    assert f"{reference}: belongs to another stream than shard 1" in output


def test_batches_hold_every_token_once_in_an_order_of_the_seed(run: Path) -> None:
    activations = Activations(str(run))
    everything = np.concatenate([item.read("mlp_out.1") for item in activations.shards()])
    with pytest.warns(UserWarning, match="lacks all shards of 7 streams; `.*workload activations verify "):
        result = list(batches(activations, "mlp_out.1", 256, seed=3))
    assert {len(batch) for batch in result[:-1]} == {256}
    assert len(result[-1]) == len(everything) % 256
    mixed = np.concatenate(result)
    assert np.array_equal(np.sort(mixed, axis=0), np.sort(everything, axis=0))
    assert not np.array_equal(mixed, everything)
    again, rival = (np.concatenate(list(batches(activations, "mlp_out.1", 256, seed))) for seed in (3, 4))
    assert np.array_equal(again, mixed)
    assert not np.array_equal(rival, mixed)


def test_batches_of_a_partial_extraction_warn_once_and_go_on(run: Path, tmp_path: Path) -> None:
    partial = FolderStore(tmp_path)
    copy_all(run, partial)
    partial.delete(shard.name(3, 2))
    config = json.loads(partial.read("config.json"))
    config["streams"]["count"] = 4
    partial.write("config.json", json.dumps(config).encode())
    activations = Activations(str(tmp_path))
    with pytest.warns(UserWarning, match=": lacks ") as warned:
        parts = [[*batches(activations, "mlp_out.1", 256, part=part, parts=2)] for part in (0, 1)]
    (warning,) = warned
    assert str(warning.message).startswith(
        f"{tmp_path}: lacks 1 shard of 1 stream and all shards of 3 streams; `"
    )
    assert str(warning.message).endswith(f"workload activations verify {tmp_path}` names them")
    held = sum(item.tokens for item in activations.shards())
    assert sum(len(batch) for part in parts for batch in part) == held


@pytest.mark.parametrize("key", ["id_bytes", "resid_post.0"])
def test_one_damaged_shard_hides_no_other(
    key: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_all(run, FolderStore(tmp_path))
    name = shard.name(3, 2)
    raw = bytearray(FolderStore(run).read(name))
    tensor = places(raw)[key]
    raw[tensor] = b"\xff" * (tensor.stop - tensor.start)
    FolderStore(tmp_path).write(name, bytes(raw))
    assert main(["activations", "verify", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert f"{name}: " in output
    assert "of 8 streams" in output


def test_shards_that_are_cut_short_hide_no_other(
    run: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_all(run, store)
    whole = FolderStore(run).read(shard.name(3, 2))
    begin = 8 + int.from_bytes(whole[:8], "little")
    said_of = {0: "has no header", begin - 9: "is no shard", begin: "is cut short", 2**17: "is cut short"}
    for left, output in said_of.items():
        store.write(shard.name(3, 2), whole[:left])
        assert main(["activations", "verify", store.url]) == 1
        first, fix, streams_left, last = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{store.url}/{shard.name(3, 2)}: ")
        assert output in first
        assert fix == "    fix: remove it, and start the extraction again: it makes missing shards"
        assert streams_left.startswith("of 8 streams, 0, 1, 2, 4, ")
        assert last.endswith(" 2 problems")


def test_a_shard_of_which_much_is_damaged_is_one_problem_with_its_fix(
    run: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_all(run, store)
    raw = bytearray(FolderStore(run).read(shard.name(3, 2)))
    for key in ("positions", "mean/mlp_out.1"):
        raw[places(raw)[key].start] ^= 1
    store.write(shard.name(3, 2), bytes(raw))
    assert main(["activations", "verify", store.url]) == 1
    first, fix, _, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{shard.name(3, 2)}: ")
    assert {"positions isn't what was written", "mean/mlp_out.1 isn't what was written"} == set(
        first.partition(": ")[2].split(", ")
    )
    assert fix.startswith("    fix: remove it, and start the extraction again")
    assert last.endswith(" 2 problems")


def test_a_stream_of_which_all_is_damaged_is_not_said_to_be_missing(
    run: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write("config.json", FolderStore(run).read("config.json"))
    store.write(shard.name(3, 1), b"")
    assert main(["activations", "verify", store.url]) == 1
    output = capsys.readouterr().out
    assert "of 8 streams, 0, 1, 2, 4, 5, 6, 7 have no shard yet" in output
    assert output.endswith(" 2 problems\n")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_single_value_that_is_no_number_is_told(tmp_path: Path, value: float) -> None:
    values = np.ones((3, 2), np.float32)
    values[1, 1] = value
    about = shard.About(0, 1, 1, "stream", "run", ("final_norm",))
    tokens, moments = np.arange(3, dtype=np.int32), Moments.none((2,))
    content = Content({"final_norm": [values]}, tokens, tokens, [3], [0], ["doc"], {"final_norm": moments})
    store = FolderStore(tmp_path)
    store.create(shard.name(0, 1), pack(about, content.tensors()))
    assert shard.Shard.checked(store, shard.name(0, 1))[1] == ["final_norm holds 1 non-finite values"]


def test_what_is_no_number_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = save_weights(tmp_path / "weights", ARCH)
    file = weights / "model.safetensors"
    raw = bytearray(file.read_bytes())
    begin = places(raw)["model.layers.2.mlp.down_proj.weight"].start
    raw[begin : begin + 4] = b"\xff" * 4
    file.write_bytes(raw)
    extract(CONFIG, make(tmp_path), weights, FolderStore(tmp_path / "run"))
    assert main(["activations", "verify", str(tmp_path / "run")]) == 1
    output = capsys.readouterr().out
    assert "resid_post.2 holds" in output
    assert "non-finite values" in output
    assert "resid_post.1 holds" not in output
