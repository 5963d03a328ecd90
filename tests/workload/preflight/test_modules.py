"""Preflight of a user's module: its verdict from the compiled step alone, and the search over its batches."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.workload.preflight.test_verdict import compiled
from tools.blocks import ROOT
from workload.preflight import compiler, report, search
from workload.preflight.compiler import Compiled, key
from workload.preflight.slices import CHIP, Slices, price, slices
from workload.preflight.verdict import Verdict, judge
from workload.train import config as configs
from workload.train.config import Config
from workload.train.module_step import open_module

EIGHT = slices("v6e-8")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """The config of the example."""
    monkeypatch.chdir(ROOT / "examples" / "flax")
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flax"))
    return configs.load("transformer.toml", ["model.vocab_size=257", "train.batch_size=16"])


def judged(config: Config, step: Compiled, wanted: Slices = EIGHT) -> Verdict:
    return judge(config, wanted, price("us-east5"), step, recovery_s=600.0)


def test_a_modules_verdict_is_of_its_own_parameters_and_products(module: Config) -> None:
    step = replace(compiled(2.0), parameters=2 * 10**9, state_bytes=24 * 10**9, flops=1e15)
    verdict = judged(module, step)
    assert verdict.prediction
    bounds = verdict.prediction.bounds
    assert bounds.compute == pytest.approx(1e15 / 8 / CHIP.bf16_flops_per_s)
    traffic = 32 * 2e9 / 8 + 2 * step.temporaries_bytes
    assert bounds.hbm == pytest.approx(traffic / CHIP.hbm_bytes_per_s)
    assert list(verdict.prediction.mfu) == ["6N"]
    assert verdict.prediction.flops == {"6N": 12e9}
    assert verdict.risk.save_s[0] == pytest.approx(2e9 * 12 / EIGHT.hosts / 1e9)
    text = report.text(verdict, "transformer.toml")
    assert "2.00 B parameters" in text
    assert "of a module, FLOPs are those of its products as traced; its own kernels' are unknown" in text


def test_the_search_compiles_a_modules_batches_from_the_largest_down(module: Config) -> None:
    tried: list[int] = []

    def compile_with(config: Config, _: Slices) -> Compiled:
        tried.append(config.train.batch_size // EIGHT.chips)
        return replace(
            compiled(3.5 * tried[-1]), parameters=10**6, flops=1e15 * tried[-1], attention="module"
        )

    ranked = search.search(module, EIGHT, judged, enough=2, compile_with=compile_with)
    assert tried[:4] == [16, 12, 8, 6]
    assert ranked[0].examples == 8
    assert ranked[0].estimated_bytes == pytest.approx(16 * open_module(module).parameters / 8, abs=1)


def test_a_cached_result_is_of_the_modules_source(module: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(module, EIGHT)
    assert key(module, EIGHT) == before
    monkeypatch.setattr("workload.modules.source.digest", lambda _: "changed")
    assert key(module, EIGHT) != before
    assert partial(key, module)(slices("v6e-16")) != before


def test_a_cached_result_is_of_the_links_speed_and_of_tokamax(
    module: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(module, EIGHT)
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "CHIP", replace(compiler.CHIP, ici_measured_bytes_per_s=1.0))
        assert key(module, EIGHT) != before
    monkeypatch.setattr(compiler, "tokamax_version", lambda: "another")
    assert key(module, EIGHT) != before
