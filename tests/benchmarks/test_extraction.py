"""The model, documents and files that the measurements of extraction use."""

import gzip
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import extraction, qwen
from benchmarks.peers import activation_extract
from tests.workload.extracting import ARCH, CONFIG, extract, in_many_shards, make_stream, save_weights
from workload.activations.reader import Activations
from workload.data.stream import read
from workload.runs.store import FolderStore


def test_the_model_has_the_size_that_its_name_says() -> None:
    assert qwen.ARCH.parameters() == 494_032_768  # of Qwen2.5-0.5B's model card: 0.49 B


def test_documents_are_the_same_each_time_and_no_longer_than_the_limit() -> None:
    several, again = qwen.documents_of(20_000), qwen.documents_of(20_000)
    assert sum(map(len, several)) >= 20_000
    assert all((item == other).all() for item, other in zip(several, again, strict=True))
    assert 0 < min(map(len, several)) <= max(map(len, several)) <= qwen.MAX_TOKENS


def test_activation_extracts_file_holds_every_sample_at_every_layer(tmp_path: Path) -> None:
    lengths = [3, 1, 4]
    values = {layer: np.full((8, 5), layer, np.float32) + np.arange(8)[:, None] for layer in (2, 7)}
    activation_extract.write(tmp_path / "shard.pkl.gz", values, lengths)
    with gzip.open(tmp_path / "shard.pkl.gz") as file:
        shard = pickle.load(file)
    for layer, value in values.items():
        ends = np.cumsum([0, *lengths])
        for sample, (begin, end) in zip(shard[layer], pairwise(ends), strict=True):
            assert sample["shape"] == (end - begin, 5)
            np.testing.assert_array_equal(sample["activation"], value[begin:end])


def test_random_access_counts_headers_and_nothing_but_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "POINT", "resid_post.1")
    (tmp_path / "stream.safetensors").write_bytes(make_stream([40, 70, 20, 90, 60, 30]))
    stream = read(str(tmp_path / "stream.safetensors"))
    weights, run = save_weights(tmp_path / "weights", ARCH), tmp_path / "run"
    extract(in_many_shards(CONFIG), stream, weights, FolderStore(run))
    random_access = extraction.random_access(run)
    assert random_access["shards"] == len(Activations(str(run)).names) > 1
    assert random_access["documents"] == 3
    headers = random_access["opening_bytes_a_shard"] * random_access["shards"]
    assert random_access["ratio"] * random_access["bytes_wanted"] == pytest.approx(
        random_access["bytes_wanted"] + headers
    )
    assert headers > 0
    assert random_access["bytes_wanted"] % (4 * ARCH.d_model) == 0
