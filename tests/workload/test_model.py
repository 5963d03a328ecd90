"""The decoder: its shapes, that no position sees what comes after it, and that it learns."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workload import config as configs
from workload import model, optimizer
from workload.config import ModelConfig

SMALL = ModelConfig(layers=2, d_model=32, heads=4, d_ff=48)
VOCAB = 50


def parameters(config: ModelConfig, seed: int = 0) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(model.draw(path[-1].key, leaf.shape, config, seed)),
        model.shapes(config, VOCAB),
    )


@pytest.fixture(name="tokens_BxL")
def _tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(1), (3, 16), 0, VOCAB)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_have_a_place_for_every_token_and_begin_undecided(tokens_BxL: jax.Array, dtype: str) -> None:
    config = replace(SMALL, dtype=dtype)
    logits_BxLxV = jax.jit(partial(model.forward, config=config))(parameters(config), tokens_BxL)
    assert logits_BxLxV.shape == (3, 16, VOCAB)
    assert logits_BxLxV.dtype == jnp.float32
    loss = jax.jit(partial(model.loss, config=config))(parameters(config), tokens_BxL)
    assert np.log(VOCAB) - 0.5 < loss < np.log(VOCAB) + 1.5


def test_no_position_sees_what_comes_after_it(tokens_BxL: jax.Array) -> None:
    forward = jax.jit(partial(model.forward, config=SMALL))
    logits = forward(parameters(SMALL), tokens_BxL)
    changed = forward(parameters(SMALL), tokens_BxL.at[:, 9].add(1) % VOCAB)
    np.testing.assert_array_equal(changed[:, :9], logits[:, :9])
    assert np.all(np.any(np.asarray(changed[:, 9:] != logits[:, 9:]), axis=-1))


def test_positions_are_told_apart_by_their_distance() -> None:
    """RoPE: the product of a turned query and key depends on how far apart they are, only."""
    rope = model._rope_angles(16, SMALL)
    q, k = jax.random.normal(jax.random.key(2), (2, 1, 1, 1, 8))
    turned_q = model._rotate(jnp.tile(q, (1, 16, 1, 1)), rope)[0, :, 0]
    turned_k = model._rotate(jnp.tile(k, (1, 16, 1, 1)), rope)[0, :, 0]
    scores = np.asarray(turned_q @ turned_k.T)
    for distance in range(-15, 16):
        along = np.diagonal(scores, distance)
        np.testing.assert_allclose(along, along[0], rtol=1e-4, atol=1e-5)
    assert np.ptp(scores) > 0.1


def test_parameters_depend_on_the_seed_and_their_name_alone() -> None:
    once, again, other = parameters(SMALL), parameters(SMALL), parameters(SMALL, seed=1)
    assert jax.tree.all(jax.tree.map(np.array_equal, once, again))
    assert not np.array_equal(once["embed_VxD"], other["embed_VxD"])
    layers = once["layers"]
    assert not np.array_equal(layers["query_NxDxHxK"], layers["key_NxDxHxK"])
    assert np.std(layers["up_NxDxF"]) == pytest.approx(32**-0.5, rel=0.1)
    assert np.std(layers["down_NxFxD"]) == pytest.approx((48 * 4) ** -0.5, rel=0.1)


def test_learning_rate_warms_up_and_decays() -> None:
    config = configs.load("tiny.toml")
    rate = optimizer.schedule(config)
    peak = config.optimizer.learning_rate
    rates = [float(rate(step)) for step in range(config.train.steps + 1)]
    assert rates[0] == 0
    assert rates[10] == max(rates) == pytest.approx(peak)
    assert rates[60] == pytest.approx(peak * config.optimizer.final_fraction)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_norms_do_not_decay() -> None:
    decayed = optimizer._decayed(parameters(SMALL))
    kept = [path[-1].key for path, decays in jax.tree_util.tree_leaves_with_path(decayed) if not decays]
    assert sorted(kept) == ["attention_norm_NxD", "final_norm_D", "mlp_norm_NxD"]
