"""Rows of the comparison with MaxText, and FLOPs of attention in it; nothing is compiled."""

import pytest

from benchmarks.maxtext import RECIPES, ROWS, attention_flops
from workload.preflight.roofline import step_flops


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_a_recipe_its_flags_and_a_config_that_loads(name: str) -> None:
    row = ROWS[name]
    recipe = RECIPES["recipes"][row.recipe]
    assert set(recipe["flags"]) <= set(RECIPES["flags"])
    config = row.loaded()
    assert config.train.batch_size == row.examples * row.slices.chips
    settings = RECIPES["arguments"] | recipe["arguments"]
    assert config.data.sequence_length == int(settings["max_target_length"])
    sizes = {
        "small": 16_781_824,
        "8b": 8_030_261_248,
        "70b": 70_553_706_496,
    }  # of the model cards, but the first
    assert config.decoder.parameters() == sizes[name.partition("-")[0]]


def test_attention_counts_as_often_as_its_kernels_run() -> None:
    """Preflight's roofline saves a forward pass of each layer's by keeping attention's output."""
    row = ROWS["8b-v6e-8"]
    decoder, tokens = row.loaded().decoder, row.examples * 8192
    full, saved = (step_flops(decoder, 8192, "splash", [remat]) for remat in ("full", "save:attn_z"))
    forward = attention_flops(row, {"splash_mha_fwd_residuals": decoder.layers})
    assert forward == pytest.approx(tokens * (full - saved))
    assert attention_flops(row, {"splash_mha_dkv": decoder.layers}) == pytest.approx(2.5 * forward)


def test_an_unknown_kernel_is_refused_and_not_counted_as_zero() -> None:
    with pytest.raises(SystemExit, match="unknown kernel, fused_loss"):
        attention_flops(ROWS["8b-v6e-8"], {"fused_loss": 1})
