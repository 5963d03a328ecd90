"""The decoder as a module of flax: its logits to the bit, its weights from anywhere, and out again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from tests.served import Received, Reply, serving
from tests.workload.extracting import ARCH, save_weights
from workload.errors import RunError, WeightsError
from workload.model import Decoder, decoder
from workload.model.loss import cross_entropy
from workload.pretrained import locate
from workload.runs.bucket_store import BucketStore
from workload.runs.store import open_store

TOKENS = np.random.default_rng(0).integers(0, ARCH.vocab_size, (2, 12), np.int32)
SEGMENTS = np.asarray([[0] * 7 + [1] * 5, [2] * 12], np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights"), ARCH)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_logits_and_loss_are_those_of_the_functions_to_the_bit(folder: Path, dtype: jnp.dtype) -> None:
    model = Decoder.from_pretrained(str(folder), dtype=dtype)
    captured = decoder.capture(model.params, TOKENS, SEGMENTS, ARCH, {"final_norm": [0]}, dtype=dtype)
    unembed = model.params[decoder.unembedding(model.params, ARCH)].astype(dtype)
    np.testing.assert_array_equal(model(TOKENS, SEGMENTS), captured["final_norm"] @ unembed.T)
    (point,) = model.capture(TOKENS, {"final_norm": [0]}, SEGMENTS).values()
    np.testing.assert_array_equal(model.hidden(TOKENS, SEGMENTS), point)
    counted = jnp.ones(TOKENS.shape)
    total, count = model.loss({"tokens": TOKENS, "segments": SEGMENTS, "targets": TOKENS, "counted": counted})
    hidden = captured["final_norm"].reshape(-1, ARCH.d_model)
    assert total == cross_entropy(hidden, unembed, TOKENS.reshape(-1), counted.reshape(-1), 2048)
    assert count == TOKENS.size


def test_an_exported_decoder_is_loaded_again_with_its_end_tokens(folder: Path, tmp_path: Path) -> None:
    content = json.loads((shutil.copytree(folder, tmp_path / "copy") / "config.json").read_text())
    given = content | {"eos_token_id": [3, 4], "bos_token_id": 1, "max_position_embeddings": 64}
    (tmp_path / "copy" / "config.json").write_text(json.dumps(given))
    model = Decoder.from_pretrained(str(tmp_path / "copy"))
    assert model.export(tmp_path / "out", "float32") == ["model.safetensors"]
    again = Decoder.from_pretrained(str(tmp_path / "out"))
    jax.tree.map(np.testing.assert_array_equal, model.params, again.params)
    assert (again.generation.begins, again.generation.ends, again.generation.longest) == ((1,), (3, 4), 64)


def test_a_decoder_of_initial_values_is_exported_and_loaded(tmp_path: Path) -> None:
    model = Decoder(ARCH)
    model.export(tmp_path, "float32")
    jax.tree.map(np.testing.assert_array_equal, model.params, Decoder.from_pretrained(str(tmp_path)).params)


class Scorer(Decoder):
    """A head of one's own on the decoder."""

    def __init__(self, architecture: object, *, rngs: nnx.Rngs, **base: object) -> None:
        super().__init__(architecture, **base)  # type: ignore[misc]
        self.score = nnx.Linear(ARCH.d_model, 1, rngs=rngs)


def test_a_head_of_ones_own_learns_on_the_decoder(folder: Path) -> None:
    model = Scorer.from_pretrained(str(folder), rngs=nnx.Rngs(0))

    def loss(model: Scorer) -> jax.Array:
        return jnp.mean(model.score(model.hidden(TOKENS)) ** 2)

    gradients = nnx.grad(loss)(model)
    assert jnp.any(gradients["score"]["kernel"][...] != 0)
    assert jnp.any(gradients["layers"]["up_NxDxF"][...] != 0)


def test_initial_values_are_a_runs_or_drawn_by_a_compiled_program() -> None:
    model = Decoder(ARCH, seed=5)
    for name in ("embed_VxD", "final_norm_D"):
        np.testing.assert_array_equal(
            model.params[name], decoder.draw(name, ARCH.shapes()["ends"][name], ARCH, 5)
        )
    drawn = jax.jit(lambda: Decoder(ARCH, rngs=nnx.Rngs(0)).params)()
    wide = drawn["layers"]["down_NxFxD"]
    assert float(jnp.std(wide)) == pytest.approx(decoder.deviation("down_NxFxD", ARCH), rel=0.1)


def test_weights_in_a_bucket_are_downloaded_once_for_each_of_their_versions(
    folder: Path, tmp_path: Path, storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"gs://bucket/{tmp_path.name}/weights"
    store = open_store(url)
    for path in folder.iterdir():
        store.write(path.name, path.read_bytes())
    reads: list[str] = []
    read = BucketStore.read
    monkeypatch.setattr(
        BucketStore, "read", lambda self, name, *more: reads.append(name) or read(self, name, *more)
    )
    model = Decoder.from_pretrained(url)
    assert "model.safetensors" in reads
    reads.clear()
    store.write("model.safetensors.index.txt", b"")
    np.testing.assert_array_equal(model(TOKENS), Decoder.from_pretrained(url)(TOKENS))
    assert set(reads) == {"config.json"}, "the cache has the rest"
    other = save_weights(tmp_path / "other", ARCH, seed=8)  # of the same size
    store.write("model.safetensors", (other / "model.safetensors").read_bytes())
    np.testing.assert_array_equal(
        Decoder.from_pretrained(str(other))(TOKENS), Decoder.from_pretrained(url)(TOKENS)
    )
    with pytest.raises(WeightsError, match=r"nowhere/config\.json: can't be read"):
        Decoder.from_pretrained(f"gs://bucket/{tmp_path.name}/nowhere")


def has_gated(request: Received) -> Reply:
    """Answer as a hub that has a gated model."""
    gated = "/some/gated/" in f"{request.target}/"
    code = "GatedRepo" if gated else "RepoNotFound"
    return Reply(403 if gated else 404, b"", [("X-Error-Code", code), ("X-Error-Message", "refused")])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    download = huggingface_hub.snapshot_download
    with serving(has_gated) as address:
        url = f"http://{address}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(
            huggingface_hub,
            "snapshot_download",
            lambda *words, **named: download(*words, endpoint=url, cache_dir=tmp_path / "hub", **named),
        )
        yield url


def test_an_id_of_the_hub_that_isnt_there_or_is_gated_is_one_clear_message(hub: str) -> None:
    with pytest.raises(WeightsError, match="some/gated: is gated") as gated:
        Decoder.from_pretrained("some/gated")
    assert f"agree at {hub}/some/gated, then: hf auth login" in str(gated.value)
    with pytest.raises(WeightsError, match="some/other: no such folder, and no such model on the hub"):
        Decoder.from_pretrained("some/other")


def test_the_hub_is_read_without_subfolders_and_without_the_same_weights_for_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    more = ["consolidated.safetensors", "original/params.json", "onnx/a/model.safetensors", "README.md"]

    def download(_: str, **patterns: Any) -> str:
        assert list(filter_repo_objects([*files, *more], **patterns)) == files
        return str(save_weights(tmp_path / "weights", ARCH))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate("some/model").arch.layers == ARCH.layers


def test_without_the_hubs_client_its_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match="hf download some/model --local-dir some/model"):
        Decoder.from_pretrained("some/model")


def test_a_run_of_a_module_isnt_the_decoder(tmp_path: Path) -> None:
    exact = {"model": {"module": "my:Model"}, "optimizer": {}, "data": {"sequence_length": 8}}
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    (tmp_path / "checkpoints" / "2" / "commit_success.txt").touch()
    (tmp_path / "config.json").write_text(json.dumps({"exact": exact, "rounding": {}}))
    with pytest.raises(RunError, match="a run of my:Model, not of the decoder"):
        Decoder.from_pretrained(str(tmp_path))


def test_a_folder_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json: can't be read"):
        Decoder.from_pretrained(str(tmp_path))
