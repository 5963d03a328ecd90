"""An extraction computes with a checkpoint of a run of ours as it does with that checkpoint's export."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.workload.extracting import CONFIG, make_stream
from tests.workload.slice import command, train
from workload.__main__ import main
from workload.activations.reader import Activations
from workload.data import stream as streams
from workload.errors import ConfigError, HopelessError, RunError
from workload.extract.run import Extraction
from workload.extract.weights import Weights, find
from workload.runs.store import FolderStore
from workload.train.base import Checkpoint, Folder
from workload.train.past import Past

pytestmark = pytest.mark.slow

LAYERS = 3


@pytest.fixture(scope="module")
def root(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, `once`, of four steps, and the exports of its steps 2 and 4."""
    root = tmp_path_factory.mktemp("trained")
    line = [*command("once", 4, 2, f"model.layers={LAYERS}", "model.qkv_bias=true"), "--dir", str(root)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert train(line) == 0
    for step in ("2", "4"):
        line = ["checkpoints", "export", str(root / "runs/once"), "--out", str(root / f"hf-{step}")]
        assert main([*line, "--step", step, "--dtype", "float32"]) == 0
    (root / "stream_003.safetensors").write_bytes(make_stream([5, 60, 33, 90, 17], vocab_size=257))
    return root


def extract(root: Path, weights: Weights, out: Path, dtype: str = "float32") -> FolderStore:
    points = ("resid_post.0", "resid_post.1", "attn_z.1.h0")
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=points, dtype=dtype))
    store = FolderStore(out)
    stream = streams.read(str(root / "stream_003.safetensors"))
    Extraction(config, stream, weights, store, lambda _: None).go()
    return store


@pytest.mark.parametrize(("step", "dtype"), [(2, "float32"), (4, "bfloat16")])
def test_what_is_kept_is_bit_for_bit_what_the_export_gives(
    root: Path, tmp_path: Path, step: int, dtype: str
) -> None:
    extract(root, find(f"run:once@{step}", str(root)), tmp_path / "ours", dtype)
    extract(root, Folder(root / f"hf-{step}"), tmp_path / "theirs", dtype)
    own, foreign = (Activations(str(tmp_path / name)).shards() for name in ("ours", "theirs"))
    digests = [[item.about.sha256 for item in several] for several in (own, foreign)]
    assert digests[0] == digests[1]


def test_another_step_gives_other_numbers(root: Path, tmp_path: Path) -> None:
    result = []
    for step in (2, 4):
        extract(root, find(f"run:{root}/runs/once@{step}", None), tmp_path / str(step))
        result.append(Activations(str(tmp_path / str(step)))["doc-1"]["resid_post.1"])
    assert not np.array_equal(result[0], result[1])


def test_only_the_layers_wanted_are_restored_and_no_optimizer(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anies: list[Any] = []
    original = Past._restore

    def spy(past: Past, step: int, placed: Any, **how: bool) -> Any:
        anies.append(placed)
        result = original(past, step, placed, **how)
        assert jax.tree.map(jnp.shape, result) == jax.tree.map(lambda leaf: leaf.shape, placed)
        return result

    monkeypatch.setattr(Past, "_restore", spy)
    extract(root, find("run:once@4", str(root)), tmp_path, "bfloat16")
    assert {name for placed in anies for name in placed} == {"params"}
    names = [name for placed in anies for name in placed["params"]]
    assert set(names) == {"embed_VxD", "layers"}  # neither the last norm nor the unembedding
    layers = [placed["params"].get("layers", {}) for placed in anies]
    assert {leaf.shape[0] for group in layers for leaf in group.values()} == {2}
    assert all(len(jax.tree.leaves(placed)) == 1 for placed in anies), "one is in memory uncast at a time"
    assert {leaf.dtype for leaf in jax.tree.leaves(anies)} == {jnp.dtype(jnp.float32)}, "as it was saved"


def test_the_run_says_which_save_it_was(root: Path, tmp_path: Path) -> None:
    store = extract(root, find("run:once@4", str(root)), tmp_path)
    model = json.loads(store.read("config.json"))["model"]
    assert model["step"] == 4
    assert model["layers"] == LAYERS
    with pytest.raises(HopelessError, match=r"model.files_sha256 was \w+, is \w+; model.step was 4, is 2"):
        extract(root, find("run:once@2", str(root)), tmp_path)
    with pytest.raises(HopelessError, match=r"model.weights_sha256 was None, is \w+"):
        extract(root, Folder(root / "hf-4"), tmp_path)


def test_a_run_that_cant_be_had_is_told_before_anything_is_begun(root: Path, tmp_path: Path) -> None:
    for word, output in (
        ("run:once", "must name a run and one of its steps"),
        ("run:once@newest", "must name a run and one of its steps"),
        ("run:On ce@4", "must be made of a-z"),
    ):
        with pytest.raises(ConfigError, match=output):
            find(word, str(root))
    with pytest.raises(RunError, match="no run was begun here"):
        find("run:twice@4", str(root))
    with pytest.raises(RunError, match=r"no complete checkpoint 3\n    fix: one of \[2, 4\]"):
        extract(root, find("run:once@3", str(root)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_takes_a_run_beside_which_it_works(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(
        '[model]\nweights = "run:once@4"\n[extract]\npoints = ["final_norm"]\n'
    )
    stream = str(root / "stream_003.safetensors")
    assert main(["extract", str(tmp_path / "mine.toml"), "--stream", stream, "--dir", str(root)]) == 0
    assert "1 shard of 5 samples, 1 made here" in capsys.readouterr().out
    assert isinstance(find("run:once@4", str(root)), Checkpoint)
