"""Collectives run beside products, in the step as XLA's TPU compiler schedules it; no TPU is needed."""

import jax
import pytest

from tests.conftest import compiled_folder
from workload.preflight.compiler import compile_step
from workload.preflight.slices import slices
from workload.train import config as configs

pytestmark = [pytest.mark.slow, pytest.mark.prove]

# A step of the recipe's kind, of two small layers: 40 s of CPU to compile.
SMALL = [
    "model.layers=2",
    "model.d_model=512",
    "model.heads=4",
    "model.kv_heads=2",
    "model.d_ff=2048",
    "model.vocab_size=1024",
    "data.sequence_length=512",
    "train.batch_size=8",
    "compute.keep_gathered=0",
]


def exchanged(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> tuple[int, int]:
    """Bytes that a chip exchanges in a step beside its products, and in all.

    An answer is kept by content (the step's sources, the compiler), so a change of either compiles again.
    """
    monkeypatch.setenv("TPU_CACHE", str(compiled_folder()))
    config = configs.load("llama-3.1-8b.toml", [*SMALL, *overrides])
    collectives = compile_step(config, slices("v6e-4")).collectives
    return (
        sum(collective.size_bytes * collective.times for collective in collectives if collective.hidden),
        sum(collective.size_bytes * collective.times for collective in collectives),
    )


def test_the_recipes_layers_are_gathered_beside_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, everything = exchanged(monkeypatch)
    assert hidden > 0.4 * everything


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="SparseCores take them off the loop")
def test_a_loop_in_the_layer_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preflight's report of it; the reason that the comment beside `examples_at_once` says what it costs."""
    hidden, everything = exchanged(monkeypatch, "compute.examples_at_once=1")
    assert hidden < 0.1 * everything
