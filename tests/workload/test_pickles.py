"""An extraction in activation-extract's layout, as its readers take it: every sample once, the same bytes."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workload.extracting import ARCH, Dying, make_stream, save_weights
from workload.__main__ import main
from workload.activations import pickles
from workload.activations.reader import Activations
from workload.errors import ConfigError, StoreError
from workload.runs.store import FolderStore


def as_theirs(path: Path) -> dict[int, list[dict[str, Any]]]:
    """As readers of that layout open a shard."""
    with gzip.open(path, "rb") as file:
        result: dict[int, list[dict[str, Any]]] = pickle.load(file)
    return result


def test_their_readers_find_every_sample_of_every_layer_once(
    extracted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["activations", "convert", str(extracted), "--out", str(tmp_path), "--point", "resid_post"]
    assert main(line) == 0
    activations = Activations(str(extracted))
    paths = sorted((tmp_path / "tpu_3").glob("shard_*.pkl.gz"))
    assert [path.name for path in paths] == [f"shard_{n:04}.pkl.gz" for n in range(1, len(paths) + 1)]
    assert len(paths) == len(activations.names) > 2
    assert f"{len(paths)} made of {len(paths)} shards" in capsys.readouterr().out
    seen = []
    for path in paths:
        shard = as_theirs(path)
        assert list(shard) == list(range(ARCH.layers))
        for layer, entries in shard.items():
            for entry in entries:
                document = activations[entry["text_preview"]]
                assert entry["sample_idx"] == document.sample
                assert type(entry["sample_idx"]) is int
                assert entry["shape"] == entry["activation"].shape == (len(document.tokens), ARCH.d_model)
                assert entry["activation"].dtype == np.float32
                assert np.array_equal(entry["activation"], document[f"resid_post.{layer}"])
                seen.append((layer, entry["sample_idx"]))
    assert sorted(seen) == [(layer, sample) for layer in range(ARCH.layers) for sample in range(100, 160)]
    about = json.loads((tmp_path / "tpu_3" / "metadata.json").read_text())
    assert (about["total_shards"], about["total_unique_samples"]) == (len(paths), 60)
    assert about["total_activations"] == 60 * ARCH.layers
    assert [item["filename"] for item in about["shards"]] == [path.name for path in paths]
    assert [item["file_size_mb"] * 2**20 for item in about["shards"]] == [
        path.stat().st_size for path in paths
    ]


def test_a_conversion_that_was_killed_ends_with_the_same_bytes(extracted: Path, tmp_path: Path) -> None:
    activations = Activations(str(extracted))
    whole, broken = FolderStore(tmp_path / "whole"), Dying(tmp_path / "broken")
    pickles.convert(activations, whole, "mlp_out")
    with pytest.raises(StoreError, match="no more"):
        pickles.convert(activations, broken, "mlp_out")
    assert "tpu_3/metadata.json" not in broken.list("")
    broken.left = 1000
    made = pickles.convert(activations, broken, "mlp_out")
    assert made == len(activations.names) - 2  # source.json and two shards were there
    assert pickles.convert(activations, broken, "mlp_out") == 0
    assert {name: broken.read(name) for name in broken.list("")} == {
        name: whole.read(name) for name in whole.list("")
    }


def test_what_is_one_tensor_a_layer_is_chosen_by_name(extracted: Path) -> None:
    points = ["resid_post.0", "resid_post.2", "attn_z.2.h3", "attn_z.2.h1", "final_norm"]
    assert pickles.by_layer(points, "resid_post") == {0: "resid_post.0", 2: "resid_post.2"}
    assert pickles.by_layer(points, "attn_z.h1") == {2: "attn_z.2.h1"}
    assert pickles.by_layer(["final_norm", "mlp_out.1"]) == {1: "mlp_out.1"}
    output = (
        r"--point = \(not given\): .* keeps resid_post, attn_z.h3, attn_z.h1\n    fix: --point resid_post"
    )
    with pytest.raises(ConfigError, match=output):
        pickles.by_layer(points)
    with pytest.raises(ConfigError, match="--point = mlp_in: must name one"):
        pickles.by_layer(points, "mlp_in")
    with pytest.raises(ConfigError, match="keeps none of a layer\n    fix: extract points of layers"):
        pickles.by_layer(["final_norm"])


def test_another_point_takes_another_place(
    extracted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["activations", "convert", str(extracted), "--out", str(tmp_path), "--point"]
    assert main([*line, "mlp_out"]) == 0
    assert main([*line, "resid_post"]) == 2
    assert (
        "source.json: is of another run, stream or point\n    fix: name a new place"
        in capsys.readouterr().err
    )


def test_extract_leaves_them_beside_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = save_weights(tmp_path / "weights", ARCH)
    stream = tmp_path / "stream_003.safetensors"
    stream.write_bytes(make_stream([5, 60, 33]))
    config = tmp_path / "mine.toml"
    config.write_text(f'[model]\nweights = "{weights}"\n[extract]\npoints = ["mlp_out.0", "resid_post.1"]\n')
    line = ["extract", str(config), "--stream", str(stream), "--dir", str(tmp_path), "--format", "pkl.gz"]
    assert main(line) == 2
    assert "--point = (not given): must name one" in capsys.readouterr().err
    assert main([*line[:-2], "--point", "resid_post"]) == 2
    assert "--point = resid_post: requires --format pkl.gz" in capsys.readouterr().err
    assert not (tmp_path / "extractions").exists()
    assert main([*line, "--point", "resid_post"]) == 0
    assert "pkl.gz: 1 made here" in capsys.readouterr().out
    (entry,) = as_theirs(tmp_path / "extractions/mine/pkl.gz/tpu_3/shard_0001.pkl.gz").values()
    assert [item["shape"] for item in sorted(entry, key=lambda item: item["sample_idx"])] == [
        (5, ARCH.d_model),
        (60, ARCH.d_model),
        (33, ARCH.d_model),
    ]
    assert main([*line, "--point", "resid_post"]) == 0
    assert "pkl.gz: 0 made here" in capsys.readouterr().out
