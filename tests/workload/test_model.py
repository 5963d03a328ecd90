"""The decoder and its step on one device: what they compute, and that they learn."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workload.model import attention, decoder, kernels, loss, points, remat, rope
from workload.model.architecture import Architecture
from workload.train import config as configs
from workload.train import optimizer
from workload.train.flops import matmul_parameters, mfu, model_flops

pytestmark = pytest.mark.slow  # of all files the longest, so it begins first

QUICK = {"xla_backend_optimization_level": 0}
SMALL = Architecture(layers=2, d_model=32, heads=4, kv_heads=2, d_ff=48, vocab_size=50)


def parameters(arch: Architecture, seed: int = 0) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(decoder.draw(path[-1].key, leaf.shape, arch, seed)),
        decoder.shapes(arch),
    )


def logits(params: Any, tokens_BxL: jax.Array, arch: Architecture, segments_BxL: Any = None) -> jax.Array:
    segments_BxL = jnp.zeros_like(tokens_BxL) if segments_BxL is None else segments_BxL
    x = decoder.capture(params, tokens_BxL, segments_BxL, arch, {"final_norm": []})["final_norm"]
    return jnp.einsum("bld,vd->blv", x, params[decoder.unembedding(params, arch)])


@pytest.fixture(name="tokens_BxL")
def _tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(1), (3, 16), 0, SMALL.vocab_size)


def test_no_position_sees_what_comes_after_it(tokens_BxL: jax.Array) -> None:
    params = parameters(SMALL)
    before = logits(params, tokens_BxL, SMALL)
    changed = logits(params, tokens_BxL.at[:, 9].add(1) % SMALL.vocab_size, SMALL)
    np.testing.assert_array_equal(changed[:, :9], before[:, :9])
    assert np.all(np.any(np.asarray(changed[:, 9:] != before[:, 9:]), axis=-1))


def test_a_document_is_read_as_if_it_were_alone(tokens_BxL: jax.Array) -> None:
    """Packed behind another, its attention and positions are its own."""
    segments_BxL = jnp.broadcast_to(jnp.where(jnp.arange(16) < 6, 0, 1), (3, 16))
    params = parameters(SMALL)
    packed = logits(params, tokens_BxL, SMALL, segments_BxL)[:, 6:]
    alone = logits(params, tokens_BxL[:, 6:], SMALL)
    np.testing.assert_allclose(packed, alone, rtol=1e-5, atol=1e-5)
    assert not np.allclose(packed, logits(params, tokens_BxL, SMALL)[:, 6:], atol=1e-2)


def test_positions_are_told_apart_by_their_distance() -> None:
    """RoPE: the product of a turned query and key depends on how far apart they are, only."""
    turn = rope.turns(jnp.arange(16)[None], SMALL)
    q, k = jax.random.normal(jax.random.key(2), (2, 1, 1, 1, 8))
    turned_q = rope.rotate(jnp.tile(q, (1, 16, 1, 1)), turn)[0, :, 0]
    turned_k = rope.rotate(jnp.tile(k, (1, 16, 1, 1)), turn)[0, :, 0]
    scores = np.asarray(turned_q @ turned_k.T)
    for distance in range(-15, 16):
        along = np.diagonal(scores, distance)
        np.testing.assert_allclose(along, along[0], rtol=1e-4, atol=1e-5)
    assert np.ptp(scores) > 0.1


def test_a_rotations_gradient_is_what_differentiation_finds() -> None:
    turn = rope.turns(jnp.arange(6)[None], SMALL)
    x, g = jax.random.normal(jax.random.key(3), (2, 1, 6, 4, 8))

    def plain(x: jax.Array) -> jax.Array:
        a, b = jnp.split(x, 2, axis=-1)
        cos, sin = turn[0][..., :4], turn[1][..., 4:]
        return jnp.sum(jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1) * g)

    gradient = jax.grad(lambda x: jnp.sum(rope.rotate(x, turn) * g))(x)
    np.testing.assert_allclose(gradient, jax.grad(plain)(x), rtol=1e-5, atol=1e-6)


def test_capture_stops_after_the_last_layer_that_is_wanted(tokens_BxL: jax.Array) -> None:
    arch = replace(SMALL, layers=4)
    params = parameters(arch)
    segments_BxL = jnp.zeros_like(tokens_BxL)
    wanted = {"resid_post": [1], "mlp_out": [0, 1]}
    run = partial(decoder.capture, segments_BxL=segments_BxL, arch=arch, wanted=wanted)
    seen = run(params, tokens_BxL)
    assert seen["resid_post"].shape == (1, 3, 16, 32)
    assert seen["mlp_out"].shape == (2, 3, 16, 32)
    # NaN in what lies behind would show wherever it was read.
    poisoned = {**params, "layers": jax.tree.map(lambda w: w.at[2:].set(jnp.nan), params["layers"])}
    jax.tree.map(np.testing.assert_array_equal, run(poisoned, tokens_BxL), seen)
    whole = decoder.capture(params, tokens_BxL, segments_BxL, arch, {"resid_post": [0, 1, 2, 3]})
    np.testing.assert_allclose(whole["resid_post"][1], seen["resid_post"][0], rtol=1e-5, atol=1e-6)


GEMMA = replace(
    SMALL, window=5, global_every=3, local_rope_theta=1e4, rope_theta=1e6, query_pre_attn_scalar=12.0,
    activation="gelu_tanh", qk_norm=True, post_norms=True, zero_centered_norms=True, scale_embeddings=True,
    tie_embeddings=True,
)  # fmt: skip


@pytest.mark.parametrize("family", [SMALL, GEMMA], ids=["llama", "gemma"])
def test_gradients_depend_neither_on_remat_nor_on_how_many_layers_keep_their_parameters(
    family: Architecture, tokens_BxL: jax.Array
) -> None:
    arch = replace(family, layers=3)
    params, segments_BxL = parameters(arch), jnp.zeros_like(tokens_BxL)

    def total(layers: Any, remat: tuple[str, ...], keep_gathered: int) -> jax.Array:
        x = params["embed_VxD"][tokens_BxL]
        y = decoder.run_layers(
            x,
            layers,
            segments_BxL,
            arch,
            attention.einsum,
            lambda _, w: w,
            remat,
            keep_gathered=keep_gathered,
        )
        return jnp.sum(jnp.square(y))

    gradient_of = jax.jit(jax.grad(total), static_argnums=(1, 2), compiler_options=QUICK)
    expected = gradient_of(params["layers"], ("none",), 0)
    variants = [(("none",), 9), (("full",), 0), (("full",), 1), (("dots",), 1)]
    for policy, kept in (*variants, (("save:attn_z", "save:mlp_act"), 1)):
        for name, gradient in gradient_of(params["layers"], policy, kept).items():
            where = f"{policy} {kept} {name}"
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-4, err_msg=where)


@pytest.mark.parametrize("kept", ["none", "full"])
def test_points_cost_nothing_in_training(kept: str, tokens_BxL: jax.Array) -> None:
    """The compiled program is the one of a decoder without points, operation for operation."""
    params, segments_BxL = parameters(SMALL), jnp.zeros_like(tokens_BxL)

    def compiled(tap: remat.Tap | None) -> list[str]:
        def total(params: Any) -> jax.Array:
            x = params["embed_VxD"][tokens_BxL]
            layers = params["layers"]
            y = decoder.run_layers(
                x, layers, segments_BxL, SMALL, attention.einsum, lambda _, w: w, (kept,), tap=tap
            )
            return jnp.sum(y)

        return _operations(jax.jit(jax.grad(total)).lower(params).compile().as_text())

    without = compiled(lambda point, value: remat.named(point, value) if point == points.GATHERED else value)
    assert len(without) > 50
    assert compiled(None) == without


def _operations(text: str) -> list[str]:
    """The kinds and shapes of the instructions, in order; their numbering may differ."""
    operations = (line.partition(" = ")[2].split("(")[0] for line in text.splitlines() if " = " in line)
    return list(operations)


@pytest.mark.parametrize("chunk", [7, 16, 1000])
def test_loss_in_chunks_is_the_loss(chunk: int) -> None:
    """53 tokens, a prime: in 8 chunks of 7, in 4 of 14, padded, and in one; value and gradients."""
    keys = jax.random.split(jax.random.key(4), 3)
    x_TxD, unembed_VxD = jax.random.normal(keys[0], (53, 32)), jax.random.normal(keys[1], (50, 32))
    targets_T = jax.random.randint(keys[2], (53,), 0, 50)
    counted_T = (jnp.arange(53) % 5 != 0).astype(jnp.float32)

    def plain(x_TxD: jax.Array, unembed_VxD: jax.Array) -> jax.Array:
        log_p_TxV = jax.nn.log_softmax(x_TxD @ unembed_VxD.T)
        return -jnp.sum(log_p_TxV[jnp.arange(53), targets_T] * counted_T)

    def chunked(x_TxD: jax.Array, unembed_VxD: jax.Array) -> jax.Array:
        return loss.cross_entropy(x_TxD, unembed_VxD, targets_T, counted_T, chunk)

    np.testing.assert_allclose(chunked(x_TxD, unembed_VxD), plain(x_TxD, unembed_VxD), rtol=1e-6)
    value_and_gradients = jax.value_and_grad(chunked, argnums=(0, 1))(x_TxD, unembed_VxD)
    expected = jax.value_and_grad(plain, argnums=(0, 1))(x_TxD, unembed_VxD)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), value_and_gradients, expected)


def test_a_prime_number_of_tokens_is_no_cliff() -> None:
    assert loss.chunks(2053, 2048) == 2


def test_whole_logits_never_exist() -> None:
    """The largest array of the compiled loss and its gradient is a chunk's."""
    T, D, V, chunk = 4096, 16, 512, 128
    abstract = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((T, D), (V, D))]
    targets, counted = jnp.zeros(T, jnp.int32), jnp.ones(T)
    run = jax.grad(lambda x, w: loss.cross_entropy(x, w, targets, counted, chunk), argnums=(0, 1))
    memory = jax.jit(run).lower(*abstract).compile().memory_analysis()
    assert memory.temp_size_in_bytes < T * V * 4 / 4


def test_keys_and_values_are_never_repeated() -> None:
    """No array of the compiled attention holds a key for every query head."""
    B, L, H, J, K = 2, 64, 8, 2, 24
    shapes = [jax.ShapeDtypeStruct((B, L, heads, K), jnp.float32) for heads in (H, J, J)]
    segments = jnp.zeros((B, L), jnp.int32)
    text = jax.jit(lambda q, k, v: attention.einsum(q, k, v, segments)).lower(*shapes).as_text()
    repeated = [line for line in text.splitlines() if "broadcast" in line and line.count(f"x{K}xf32>") == 2]
    assert not repeated


@pytest.mark.parametrize(
    ("kind", "platform", "length", "chosen"),
    [
        ("auto", "tpu", 8192, "tokamax" if kernels.tokamax_version() else "splash"),
        ("splash", "tpu", 8192, "splash"),
        ("auto", "tpu", 100, "einsum"),
        ("auto", "cpu", 1024, "einsum"),
        ("einsum", "tpu", 8192, "einsum"),
    ],
)
def test_attention_is_the_platforms_best(kind: str, platform: str, length: int, chosen: str) -> None:
    attention_kind, reason = kernels.choose(kind, platform, length)
    assert attention_kind == chosen
    assert reason


@pytest.mark.parametrize(
    ("kind", "platform", "length", "rule"),
    [
        ("splash", "cpu", 1024, "is a kernel for TPUs, and this is a cpu"),
        ("splash", "tpu", 64, "needs a data.sequence_length that 128 divides, not 64"),
        ("einsum", "cpu", 1000, ""),
    ],
)
def test_attention_that_cannot_run_is_refused(kind: str, platform: str, length: int, rule: str) -> None:
    assert kernels.problem(kind, platform, length) == rule


TOKAMAX = pytest.mark.skipif(not kernels.tokamax_version(), reason="tokamax isn't installed")


def whole_attention(q: Any, k: Any, v: Any, segments_BxL: Any, window: int = 0, scale: float = 0.0) -> Any:
    """The reference: every query against every key, keys repeated."""
    L, H, K = q.shape[1:]
    k, v = (jnp.repeat(x, H // x.shape[2], axis=2) for x in (k, v))
    back = jnp.arange(L)[:, None] - jnp.arange(L)[None]
    near = (back >= 0) & (back < (window or L))
    seen = near & (segments_BxL[:, :, None] == segments_BxL[:, None, :])
    scores = jnp.where(seen[:, None], jnp.einsum("bqhk,bshk->bhqs", q, k) * (scale or K**-0.5), -jnp.inf)
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores), v)


@partial(jax.jit, static_argnums=0)
def with_gradients(attend: Any, q: Any, k: Any, v: Any, segments: Any, g: Any) -> Any:
    """An attention's result and its gradients."""
    z, backward = jax.vjp(lambda *x: attend(*x, segments), q, k, v)
    return z, backward(g)


@pytest.mark.parametrize(
    ("kind", "L", "K", "other"),
    [
        ("splash", 256, 128, {}),
        ("splash", 128, 64, {}),
        ("splash", 1024, 128, {"window": 300, "scale": 0.05}),
        pytest.param("tokamax", 256, 128, {}, marks=TOKAMAX),
        pytest.param("tokamax", 128, 64, {}, marks=TOKAMAX),
        pytest.param("tokamax", 1024, 128, {"window": 300, "scale": 0.05}, marks=TOKAMAX),
        ("einsum", 100, 24, {}),
        ("einsum", 100, 24, {"window": 1}),
        ("einsum", 100, 24, {"window": 29, "scale": 0.05}),
        ("einsum", 100, 24, {"window": 100}),
    ],
)
def test_attention_agrees_with_the_reference(kind: str, L: int, K: int, other: dict[str, Any]) -> None:
    """Grouped heads, two documents, forward and backward; the TPU's kernel is interpreted."""
    B, H, J = 1, 4, 2
    keys = jax.random.split(jax.random.key(5), 4)
    q, k, v, g = (
        jax.random.normal(key, (B, L, heads, K)) for key, heads in zip(keys, (H, J, J, H), strict=True)
    )
    segments = jnp.where(jnp.arange(L) < L * 2 // 5, 0, 1)[None]
    plain_z, plain_gradients = with_gradients(partial(whole_attention, **other), q, k, v, segments, g)
    with attention.interpreted():
        z, gradients = with_gradients(partial(attention.attend(kind), **other), q, k, v, segments, g)
    np.testing.assert_allclose(z, plain_z, rtol=2e-5, atol=2e-5)
    for a, b in zip(gradients, plain_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("length", "window", "block"),
    [
        (128, 0, 128), (384, 0, 384), (8192, 0, 2048), (5120, 0, 1280), (2176, 0, 1152), (7808, 0, 1152),
        (8192, 4, 512), (8192, 1024, 1024), (8192, 4096, 2048), (2176, 4, 512),
    ],
)  # fmt: skip
def test_splash_takes_the_largest_block_that_divides_the_padded_length_and_fits_a_window(
    length: int, window: int, block: int
) -> None:
    assert kernels.block_size(length, window) == block
    assert kernels.padded(length, window) % block == 0


def test_no_row_has_small_blocks_or_much_padding() -> None:
    lengths = range(128, 8193, 128)
    assert all(kernels.block_size(length) >= min(512, length) for length in lengths)
    assert max(kernels.padded(length) / length for length in lengths) < 1.06
    assert sum(kernels.padded(length) > length for length in lengths) == 19


@pytest.mark.parametrize("kind", ["splash", pytest.param("tokamax", marks=TOKAMAX)])
def test_padding_to_whole_blocks_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = jax.random.split(jax.random.key(6), 4)
    q, k, v, g = (jax.random.normal(key, (1, 128, 2, 128)) for key in keys)
    segments = jnp.where(jnp.arange(128) < 50, 0, 1)[None]
    plain_z, plain_gradients = with_gradients(whole_attention, q, k, v, segments, g)
    monkeypatch.setattr(attention, "padded", lambda length, window: 256)
    monkeypatch.setattr(attention, "block_size", lambda length, window: 256)
    with attention.interpreted():
        z, gradients = with_gradients(attention.attend(kind), q, k, v, segments, g)
    np.testing.assert_allclose(z, plain_z, rtol=2e-5, atol=2e-5)
    for a, b in zip(gradients, plain_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@TOKAMAX
def test_a_bound_of_the_scores_changes_nothing() -> None:
    keys = jax.random.split(jax.random.key(7), 3)
    q, k, v = (jax.random.normal(key, (1, 128, 2, 128)) for key in keys)
    segments = jnp.zeros((1, 128), jnp.int32)
    with attention.interpreted():
        z = attention.attend("tokamax", max_logit=30.0)(q, k, v, segments)
        np.testing.assert_allclose(z, attention.attend("tokamax")(q, k, v, segments), rtol=2e-5, atol=2e-5)


def test_a_window_takes_scores_away() -> None:
    """Of splash's 16 x 16 blocks each row computes two."""
    assert kernels.computed_share("splash", 8192, 512) == (16 + 15) / 256
    assert kernels.computed_share("einsum", 2048, 1) == 1
    llama = replace(SMALL, window=0)
    assert replace(llama, window=16).keys_per_token(16) == llama.keys_per_token(16) == 2 * 8
    # Queries 0, 1, 2, … of 16 see 1, 2, 3, 4, 4, … keys; half the diagonal counts, as without a window.
    mean = (1 + 2 + 3 + 4 * 13) / 16 - 4 / 32
    assert replace(llama, window=4).keys_per_token(16) == pytest.approx(2 * mean)
    assert replace(llama, window=4, global_every=2).keys_per_token(16) == pytest.approx(mean + 8)


def test_parameters_depend_on_the_seed_and_their_name_alone() -> None:
    once, again, of_another_seed = parameters(SMALL), parameters(SMALL), parameters(SMALL, seed=1)
    assert jax.tree.all(jax.tree.map(np.array_equal, once, again))
    assert not np.array_equal(once["embed_VxD"], of_another_seed["embed_VxD"])
    layers = once["layers"]
    assert not np.array_equal(layers["key_NxDxR"], layers["value_NxDxR"])
    assert np.std(layers["up_NxDxF"]) == pytest.approx(32**-0.5, rel=0.1)
    assert np.std(layers["down_NxFxD"]) == pytest.approx((48 * 4) ** -0.5, rel=0.1)


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_learning_rate_warms_up_and_decays(kind: str) -> None:
    config = configs.load("tiny.toml", [f"optimizer.schedule={kind}"])
    rate = optimizer.schedule(config)
    peak = config.optimizer.learning_rate
    rates = [float(rate(step)) for step in range(config.train.steps + 1)]
    assert rates[0] == 0
    assert rates[10] == max(rates) == pytest.approx(peak)
    end = peak if kind == "constant" else peak * config.optimizer.final_fraction
    assert rates[60] == pytest.approx(end)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_flops_are_those_that_published_figures_stand_on() -> None:
    """MaxText's Llama-3.1-8B on v6e-256: 7,207 tokens/s/chip, 417.4 TFLOP/s/chip, 45.5 % (non-causal)."""
    llama = Architecture(layers=32, d_model=4096, heads=32, kv_heads=8, d_ff=14336, vocab_size=128256)
    assert llama.parameters() == 8_030_261_248
    assert matmul_parameters(llama) == 7_504_658_432
    flops = model_flops(llama, 8192)
    assert flops["non_causal"] * 7207 / 1e12 == pytest.approx(417.4, rel=1e-3)
    shares = mfu(flops, 7207, 918.0)
    assert shares["non_causal"] == pytest.approx(0.455, abs=1e-3)
    assert shares["causal"] == pytest.approx(0.404, abs=1e-3)
    assert shares["6N"] == pytest.approx(0.378, abs=1e-3)
