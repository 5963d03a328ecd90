"""Preflight's search of recipes that fit, by speed."""

from functools import partial
from pathlib import Path

import pytest

from tests.workload.preflight.test_verdict import V6E_256, compiled, judged, llama
from workload.errors import ConfigError
from workload.preflight import command, search
from workload.preflight.compiler import Compiled
from workload.preflight.slices import GIB, Slices, slices
from workload.train import config as configs
from workload.train import flags
from workload.train.config import Config


def test_a_search_ranks_what_fits_by_speed_and_stops_when_it_has_enough() -> None:
    config, asked_about = llama(), []

    def compile_with(changed: Config, _: Slices) -> Compiled:
        size = search.estimate_bytes(changed, V6E_256) / GIB
        asked_about.append(changed)
        if size > 31.25:
            return compiled(refused=f"total memory required ({size:.2f}G) exceeds available HBM (31.25G)")
        return compiled(size - 1.0)

    candidates = search.search(config, V6E_256, judged, enough=3, most=8, compile_with=compile_with)
    fits = [candidate.verdict.fits for candidate in candidates if candidate.verdict]
    assert fits[:3] == ["yes"] * 3
    assert len(asked_about) == len(candidates) <= 8 + len(flags.GROUPS)
    speeds = [
        candidate.verdict.prediction.tokens_per_s_per_chip[1]
        for candidate in candidates[:3]
        if candidate.verdict and candidate.verdict.prediction
    ]
    assert speeds == sorted(speeds, reverse=True)
    text = search.table(candidates)
    assert text.count("\n") == len(candidates)
    assert "fits" in text.splitlines()[1]


def test_a_search_asks_about_the_best_without_each_group_of_flags() -> None:
    def compile_with(changed: Config, _: Slices) -> Compiled:
        assert flags.options(changed.compute, "tpu") is not None
        return compiled(14.0 if "layouts" in changed.compute.flags else 20.0)

    candidates = search.search(llama(), V6E_256, judged, enough=1, compile_with=compile_with)
    default = flags.groups(llama().compute)
    tried = [
        set(candidate.config.compute.flags)
        for candidate in candidates
        if candidate.config.compute.flags != ("auto",)
    ]
    assert sorted(map(sorted, tried)) == sorted(sorted(set(default) - {name}) for name in default)
    assert candidates[0].config.compute.flags == ("auto",), "what changes nothing isn't recommended"
    fewer = next(candidate for candidate in candidates if candidate.config.compute.flags != ("auto",))
    assert 'compute.flags=["' in fewer.settings


def test_a_search_asks_about_other_meshes_where_their_copies_have_room() -> None:
    candidates = search.search(llama(), V6E_256, judged, enough=1, compile_with=lambda *_: compiled(14.0))
    assert {candidate.config.mesh.data for candidate in candidates} == {1, 2, 4}
    eight = slices("v6e-8")  # where a second copy of the state is 15 GiB a chip
    for_eight = partial(judged, wanted=eight)
    candidates = search.search(llama(), eight, for_eight, enough=1, compile_with=lambda *_: compiled(27.0))
    assert {candidate.config.mesh.data for candidate in candidates} == {1}


def test_a_search_that_finds_nothing_that_fits_tries_no_flags() -> None:
    candidates = search.search(llama(), V6E_256, judged, most=2, compile_with=lambda *_: compiled(40.0))
    assert [candidate.config.compute.flags for candidate in candidates] == [("auto",)] * 2


@pytest.mark.parametrize(
    ("name", "slice_type", "count", "hbm_gib"),
    [
        ("llama-3.1-8b-v6e-8.toml", "v6e-8", 1, 29.21),
        ("llama-3.1-8b-v6e-16.toml", "v6e-16", 1, 26.64),
        ("llama-3.1-8b-v6e-256.toml", "v6e-256", 1, 27.76),
    ],
)
def test_a_search_considers_what_the_recipe_runs(
    name: str, slice_type: str, count: int, hbm_gib: float
) -> None:
    """Sizes as JAX 0.10.2 compiled them; golden: they change with the recipes, and stand in their heads."""
    config, desired = configs.load(name), slices(slice_type, count)
    assert search.estimate_bytes(config, desired) / GIB == pytest.approx(hbm_gib, rel=0.15)
    candidates = [
        (candidate.config.train.batch_size, candidate.config.compute.remat)
        for candidate in search.candidates(config, desired)
    ]
    assert (config.train.batch_size, config.compute.remat) in candidates


@pytest.mark.parametrize("length", [64, 1000])
def test_a_search_takes_lengths_that_splash_doesnt(length: int) -> None:
    candidates = search.candidates(llama(f"data.sequence_length={length}"), V6E_256)
    assert candidates[0].roofline_speed > 0


def test_a_search_recommends_what_it_asked_about_and_only_what_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 14.0
    monkeypatch.setattr(command, "compile_step", lambda *_, **__: compiled(size))
    line = ["llama-3.1-8b-v6e-256.toml", "--slice", "v6e-256", "--search", "--set", "train.accumulate=2"]
    assert command.main(line) == 0
    next_step = capsys.readouterr().out.splitlines()[-1]
    assert "--set 'train.accumulate=1'" in next_step
    size = 40.0
    assert command.main(line) == 3
    assert "none of these surely fits" in capsys.readouterr().out.splitlines()[-1]


def test_a_search_where_nothing_fits_says_so() -> None:
    giant = llama("model.layers=400", "model.d_model=16384", "model.d_ff=65536")
    with pytest.raises(ConfigError, match="use a larger slice"):
        search.search(giant, slices("v6e-8"), judged)


def test_a_search_is_drawn(tmp_path: Path) -> None:
    from workload.preflight.plot import draw

    candidates = search.search(llama(), V6E_256, judged, enough=2, compile_with=lambda *_: compiled())
    draw(candidates, tmp_path / "found.png", "a title")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
