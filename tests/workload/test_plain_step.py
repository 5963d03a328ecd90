"""Two steps of training and an evaluation against a plain implementation of model, mask, mean and AdamW."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workload.data.tokens import Dataset
from workload.model import decoder, rope
from workload.model.architecture import Architecture, RopeScaling
from workload.train import flags
from workload.train.compute import ComputeConfig
from workload.train.config import Config, DataConfig, ObserveConfig, TrainConfig
from workload.train.evaluation import Evaluation
from workload.train.optimizer_config import OptimizerConfig
from workload.train.progress import Progress
from workload.train.sharding import make_mesh
from workload.train.step import Step

ARCH = Architecture(layers=2, d_model=16, heads=4, kv_heads=2, d_ff=24, vocab_size=32, qkv_bias=True)
# Two parts of two examples; a large epsilon, so that AdamW's updates show the gradient's scale.
CONFIG = Config(
    model=ARCH,
    data=DataConfig(sequence_length=12),
    compute=ComputeConfig(quick_compile=True),
    optimizer=OptimizerConfig(
        learning_rate=0.1, warmup_steps=0, schedule="linear", clip_norm=0.05, epsilon=0.01, weight_decay=0.2
    ),
    train=TrainConfig(steps=4, batch_size=4, accumulate=2),
    observe=ObserveConfig(eval_batches=3),
)
LENGTHS = [[5, 8], [13], [8, 5], [1, 1, 1, 5, 5]]  # of the documents of each example, 13 tokens


def batch(seed: int) -> dict[str, Any]:
    tokens = np.random.default_rng(seed).integers(0, ARCH.vocab_size, (4, 13))
    segments = [[n for n, length in enumerate(row) for _ in range(length)] for row in LENGTHS]
    return {"tokens_BxL1": tokens.astype(np.int32), "segments_BxL1": np.array(segments, np.int32)}


def document_loss(params: Any, tokens: Any, counted: Any = 1.0) -> Any:
    """The sum of -log p of every token of a document but its first, or of those that are counted."""
    L, H, J, K = len(tokens) - 1, ARCH.heads, ARCH.J, ARCH.K
    angle = np.outer(np.arange(L), 10_000.0 ** (-np.arange(0, K, 2) / K))

    def norm(x: Any, scale: Any) -> Any:
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale

    def turned(x: Any) -> Any:
        (a, b), cos, sin = jnp.split(x, 2, axis=-1), np.cos(angle)[:, None], np.sin(angle)[:, None]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = params["embed_VxD"][tokens[:-1]]
    for n in range(ARCH.layers):
        w = {name.replace("_Nx", "_"): value[n] for name, value in params["layers"].items()}
        y = norm(x, w["attention_norm_D"])
        q, k, v = ((y @ w[name] + w[bias]).reshape(L, -1, K) for name, bias in PROJECTIONS)
        k, v = (jnp.repeat(z, H // J, axis=1) for z in (turned(k), v))
        scores = jnp.einsum("qhk,shk->hqs", turned(q), k) / K**0.5
        weights = jax.nn.softmax(jnp.where(np.tri(L, dtype=bool), scores, -jnp.inf))
        x = x + jnp.einsum("hqs,shk->qhk", weights, v).reshape(L, -1) @ w["out_QxD"]
        y = norm(x, w["mlp_norm_D"])
        x = x + (jax.nn.silu(y @ w["gate_DxF"]) * (y @ w["up_DxF"])) @ w["down_FxD"]
    logits = norm(x, params["final_norm_D"]) @ params["unembed_VxD"].T
    return -jnp.sum(jax.nn.log_softmax(logits)[np.arange(L), tokens[1:]] * counted)


PROJECTIONS = (("query_DxQ", "query_bias_Q"), ("key_DxR", "key_bias_R"), ("value_DxR", "value_bias_R"))


gradient_of_document = jax.jit(
    jax.value_and_grad(document_loss), compiler_options=flags.options(CONFIG.compute, "cpu")
)


def mean_loss(params: Any, tokens_BxL1: Any) -> tuple[float, dict[str, Any]]:
    """Over all documents of two tokens or more, each read alone; and its gradient."""
    total, count, gradient = 0.0, 0, dict.fromkeys(flat(params), 0.0)
    for tokens, lengths in zip(tokens_BxL1, LENGTHS, strict=True):
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            if length > 1:
                loss, of_document = gradient_of_document(params, tokens[end - length : end])
                total, count = total + float(loss), count + length - 1
                gradient = {name: gradient[name] + part for name, part in flat(of_document).items()}
    return total / count, {name: value / count for name, value in gradient.items()}


def flat(tree: Any) -> dict[str, Any]:
    return {path[-1].key: np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def initial() -> Any:
    """The parameters that a run draws, with biases and norms that differ from their neutral values."""
    drawn = jax.tree_util.tree_map_with_path(
        lambda path, leaf: decoder.draw(path[-1].key, leaf.shape, ARCH, 0), decoder.shapes(ARCH)
    )
    generator = np.random.default_rng(3)
    return jax.tree.map(lambda x: (x + 0.1 * generator.standard_normal(x.shape)).astype(np.float32), drawn)


@pytest.fixture(name="step", scope="module")
def _step() -> Step:
    return Step(CONFIG, make_mesh(CONFIG.mesh, [jax.devices()[:1]]), "cpu")


def test_a_bound_of_the_scores_that_nothing_reads_is_named_beside_the_kernel(step: Step) -> None:
    bounded = replace(CONFIG, compute=replace(CONFIG.compute, max_logit=30.0))
    reason = Step(bounded, step.mesh, "cpu").attention_reason
    assert reason == f"{step.attention_reason}; compute.max_logit = 30 does nothing without tokamax's kernel"


def test_two_steps_are_those_of_a_plain_implementation(step: Step) -> None:
    params, settings = initial(), CONFIG.optimizer
    state = {"params": params, "opt_state": step.first_optimizer_state(params)}
    state = jax.device_put(jax.tree.map(jnp.array, state), step.shardings)  # donated: params stay
    update, plain = step.compile(), flat(params)
    first = {name: np.zeros_like(value) for name, value in plain.items()}
    second = {name: np.zeros_like(value) for name, value in plain.items()}
    for number in (1, 2):
        given = batch(number)
        state, metrics = update(state, jax.device_put(given, step.batch["tokens_BxL1"].sharding))
        loss, gradients = mean_loss(params, given["tokens_BxL1"])
        norm = np.sqrt(sum(float(np.sum(gradient**2)) for gradient in gradients.values()))
        assert norm > 10 * settings.clip_norm
        assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
            {"loss": float(loss), "tokens": 11 + 12 + 11 + 8, "gradient_norm": norm}, rel=1e-4
        )
        rate = 0.1 + (0.01 - 0.1) * (number - 1) / 4
        progress = Progress(CONFIG, 1, "cpu")
        progress.begin(0)
        numbers = progress.did(number, {"loss": 1.0, "gradient_norm": norm})
        assert numbers["learning_rate"] == pytest.approx(rate)
        for name, gradient in gradients.items():
            clipped = gradient * settings.clip_norm / norm
            first[name] = 0.9 * first[name] + 0.1 * clipped
            second[name] = 0.95 * second[name] + 0.05 * clipped**2
            mean, variance = first[name] / (1 - 0.9**number), second[name] / (1 - 0.95**number)
            decay = 0.0 if "norm" in name or "bias" in name else 0.2 * plain[name]
            plain[name] = plain[name] - rate * (mean / (np.sqrt(variance) + 0.01) + decay)
        trained = flat(state["params"])
        for name, value in plain.items():
            np.testing.assert_allclose(
                trained[name], value, rtol=1e-4, atol=2e-6, err_msg=f"{number}: {name}"
            )
        params = jax.tree_util.tree_map_with_path(lambda path, _: plain[path[-1].key], params)


def test_the_loss_on_answers_is_that_of_the_marked_targets() -> None:
    config = replace(CONFIG, data=replace(CONFIG.data, loss="answers"))
    step = Step(config, make_mesh(CONFIG.mesh, [jax.devices()[:1]]), "cpu")
    params, given = initial(), batch(1)
    given["counted_BxL1"] = np.random.default_rng(7).integers(0, 2, (4, 13)).astype(np.int32)
    total, count, gradient = 0.0, 0, dict.fromkeys(flat(params), 0.0)
    for tokens, marks, lengths in zip(given["tokens_BxL1"], given["counted_BxL1"], LENGTHS, strict=True):
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            if length > 1:
                counted = marks[end - length + 1 : end]
                loss, of_document = gradient_of_document(params, tokens[end - length : end], counted)
                total, count = total + float(loss), count + int(counted.sum())
                gradient = {name: gradient[name] + part for name, part in flat(of_document).items()}
    norm = np.sqrt(sum(float(np.sum((part / count) ** 2)) for part in gradient.values()))
    state = {"params": params, "opt_state": step.first_optimizer_state(params)}
    state = jax.device_put(jax.tree.map(jnp.array, state), step.shardings)
    placed = jax.device_put(given, step.by_example)
    sums = step.compile_loss()(jax.device_put(params, step.shardings["params"]), placed)
    assert [float(value) for value in sums] == pytest.approx([total, count], rel=1e-5), "of validation too"
    _, metrics = step.compile()(state, placed)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {"loss": total / count, "tokens": count, "gradient_norm": norm}, rel=1e-4
    )


def test_the_loss_on_held_out_tokens_is_the_mean_over_all_batches(step: Step, tmp_path: Path) -> None:
    """Three batches of four, which are all examples; every other one holds two documents."""
    end = ARCH.vocab_size - 1
    tokens = np.random.default_rng(5).integers(0, end, 12 * 12 + 1).astype("<u2")
    tokens[4::24] = end
    (tmp_path / "tokens-00000.bin").write_bytes(tokens.tobytes())
    manifest = {
        "version": 3, "tokenizer": "t", "tokenizer_sha256": "", "vocab_size": ARCH.vocab_size, "dtype": "<u2",
        "begin_of_document": [], "end_of_document": end, "documents": 6,
        "tokens": len(tokens),
        "shards": [{"file": "tokens-00000.bin", "tokens": len(tokens), "sha256": ""}],
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    held_out, params = Dataset(tmp_path, 12), initial()

    total = 0.0
    for number in range(12):
        example = tokens[number * 12 : number * 12 + 13].astype(int)
        for document in (example,) if number % 2 else (example[:5], example[5:]):
            total += float(gradient_of_document(params, document)[0])
    evaluation = Evaluation(CONFIG, step, held_out, held_out)
    placed = jax.device_put(params, step.shardings["params"])
    assert evaluation.loss(placed).loss == pytest.approx(total / (6 * 12 + 6 * 11), rel=1e-5)


def test_llama_3_1s_frequencies_are_those_of_its_paper() -> None:
    """Wavelengths up to 8192 / 4 stay, from 8192 on they grow eightfold, between they are blended."""
    scaling = RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)
    arch = replace(ARCH, heads=1, head_dim=128, rope_theta=500_000.0, rope_scaling=scaling)
    frequencies, factor = rope.frequencies(arch)
    assert factor == 1.0
    for pair, frequency in enumerate(frequencies):
        plain = 500_000.0 ** (-2 * pair / 128)
        wavelength = 2 * np.pi / plain
        if wavelength < 2048:
            expected = plain
        elif wavelength > 8192:
            expected = plain / 8
        else:
            kept = (8192 / wavelength - 1) / 3
            expected = kept * plain + (1 - kept) * plain / 8
        assert frequency == pytest.approx(expected, rel=1e-5), pair
