"""Shards are written out of the rows' own memory, several at once, as safetensors would write them."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from tests.limits import HANG_S
from tests.workload.extracting import ARCH, CONFIG, extract, in_many_shards, make_stream, save_weights
from tests.workload.slice import cpu_devices
from workload.activations import shard
from workload.activations.shard import About
from workload.activations.writer import pack
from workload.data import stream as streams
from workload.extract import forward, run
from workload.extract.forward import Forward
from workload.runs.content import Content
from workload.runs.store import FolderStore, Store

KINDS = [np.float32, np.float64, np.int32, np.int64, np.uint8, ml_dtypes.bfloat16]


@st.composite
def tensors(draw: st.DrawFn) -> list[NDArray[Any]]:
    """Parts of a tensor, one of them padded so that its rows lie apart."""
    kind, width = draw(st.sampled_from(KINDS)), draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    parts = [np.arange(length * width).reshape(length, width).astype(kind) for length in lengths]
    padded = np.zeros((lengths[0], width + 2), kind)
    padded[:, :width] = parts[0]
    return [padded[:, :width], *parts[1:]]


@given(st.dictionaries(st.text("abcé/._10", min_size=1, max_size=8), tensors(), min_size=1, max_size=6))
def test_a_file_is_that_of_safetensors(content: dict[str, list[NDArray[Any]]]) -> None:
    raw = b"".join(pack(About(1, 2, 3, "é", "r", tuple(content)), content))
    size = int.from_bytes(raw[:8], "little")
    metadata = json.loads(raw[8 : 8 + size])["__metadata__"]
    assert raw == save({name: np.concatenate(parts) for name, parts in content.items()}, metadata)


def test_a_tensors_rows_are_not_copied() -> None:
    rows = np.ones((4, 8), ml_dtypes.bfloat16)
    *_, first, second = pack(About(0, 1, 1, "", "", ("a",)), {"a": [rows[:3], rows[3:]]})
    rows[:] = 0
    assert not np.frombuffer(first, np.uint8).any()
    assert not np.frombuffer(second, np.uint8).any()


def test_an_object_of_many_pieces_is_created_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """More pieces than a call takes, calls that write less, and more bytes than one request."""
    writev, calls = os.writev, 0

    def short(descriptor: int, pieces: list[memoryview]) -> int:
        nonlocal calls
        calls += 1
        return writev(descriptor, [pieces[0][: max(1, len(pieces[0]) // 2)]] if calls % 7 == 3 else pieces)

    monkeypatch.setattr(os, "writev", short)
    draw = np.random.default_rng(0)
    pieces = [draw.bytes(length) for length in draw.integers(0, 10_000, 2500)]
    content: Content = [b"", *(memoryview(piece) for piece in pieces), b""]
    assert store.create("a/b", content)
    assert not store.create("a/b", content)
    assert store.read("a/b") == b"".join(pieces)
    assert store.create("empty", [])
    assert store.read("empty") == b""
    assert calls > 3 or not isinstance(store, FolderStore)


@pytest.fixture(scope="module", name="weights")
def _weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "model", ARCH)


def test_shards_are_written_at_the_same_time(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "stream_003.safetensors").write_bytes(make_stream([100] * run.WRITERS))
    together = threading.Barrier(run.WRITERS)

    class Meeting(FolderStore):
        def create(self, name: str, content: Content) -> bool:
            if name.startswith("activations/"):
                together.wait(HANG_S)
            return super().create(name, content)

    stream = streams.read(str(tmp_path / "stream_003.safetensors"))
    summary = extract(in_many_shards(CONFIG), stream, weights, Meeting(tmp_path / "run"))
    assert summary.made == summary.shards == run.WRITERS


def test_weights_on_every_chip_or_split_over_them_give_the_same_bytes(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stream_003.safetensors").write_bytes(make_stream([20 + n % 80 for n in range(40)]))
    stream = streams.read(str(tmp_path / "stream_003.safetensors"))
    seen = []
    compile_ = Forward.compile
    monkeypatch.setattr(
        Forward, "compile", lambda self, batches: (seen.append(self.whole), compile_(self, batches))[1]
    )
    with cpu_devices(4):
        for name, memory in (("whole", 1e9), ("split", 1e3)):
            known = iter([memory, 1e9])  # as weights are placed, and as the program is compiled
            monkeypatch.setattr(forward.sharding, "memory_bytes", lambda _, known=known: next(known))
            extract(CONFIG, stream, weights, FolderStore(tmp_path / name))
    assert seen == [True, False]
    whole, split = (FolderStore(tmp_path / name) for name in ("whole", "split"))
    names = whole.list(shard.folder(3))
    assert {name: whole.read(name) for name in names} == {name: split.read(name) for name in names}
