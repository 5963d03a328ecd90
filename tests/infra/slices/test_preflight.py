"""`pulumi preview` says what preflight found of a slice's run, or how to ask it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.slices import preflight
from tests.limits import HANG_S

ROOT = Path(__file__).resolve().parents[3]
RUN = "train tiny.toml --set train.steps=20 --set=model.layers=3"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_CACHE", str(tmp_path))
    preflight.verdict_on.cache_clear()


# Keeps an answer where preflight keeps its own, as if it had compiled the step.
KEEP = """
import json, sys
from dataclasses import asdict
from workload.train import config
from workload.preflight.compiler import Compiled, cache_folder, key
from workload.preflight.slices import GIB, slices
wanted = config.load("tiny.toml", ["train.steps=20", "model.layers=3"])
found = Compiled(sys.argv[2], GIB, int(float(sys.argv[1]) * GIB), 0, 0, (), (), "einsum", 1.0, "a compiler")
cache_folder().mkdir(parents=True, exist_ok=True)
(cache_folder() / f"{key(wanted, slices('v6e-16'))}.json").write_text(json.dumps(asdict(found)))
"""


def keep(temporaries_gib: float, refused: str = "") -> None:
    line = [sys.executable, "-c", KEEP, str(temporaries_gib), refused]
    subprocess.run(line, cwd=ROOT, env=dict(os.environ), check=True, timeout=HANG_S)


def test_a_run_that_nobody_asked_about_is_warned_of_with_the_command() -> None:
    output = preflight.verdict_on(RUN, "v6e-16")
    assert output is not None
    assert output.warn
    assert output.line.endswith(
        "tpu preflight tiny.toml --slice v6e-16 --set=train.steps=20 --set=model.layers=3"
    )


@pytest.mark.parametrize(
    ("temporaries_gib", "refused", "warn", "text"),
    [
        (10.0, "", False, "fits v6e-16: 11.00 of 31.25 GiB a chip, 35%"),
        (29.5, "", True, "may not fit v6e-16: 30.50 of 31.25 GiB"),
        (33.0, "", True, "does not fit v6e-16: 34.00 of 31.25 GiB a chip, 109%, though it compiles"),
        (0.0, "out of memory", True, "does not fit v6e-16: the compiler refuses the step: out of memory"),
    ],
)
def test_what_was_found_is_said(temporaries_gib: float, refused: str, warn: bool, text: str) -> None:
    keep(temporaries_gib, refused)
    output = preflight.verdict_on(RUN, "v6e-16")
    assert output is not None
    assert output.warn == warn
    assert text in output.line


def test_another_slice_or_step_has_no_answer_yet() -> None:
    keep(10.0)
    for run, kind in (
        (RUN, "v6e-8"),
        ("train tiny.toml --set model.layers=3 --set model.d_ff=96", "v6e-16"),
    ):
        output = preflight.verdict_on(run, kind)
        assert output is not None
        assert output.line.startswith("no preflight of")
    # What changes nothing of the program keeps the answer.
    same = preflight.verdict_on(f"{RUN} --set checkpoint.keep=9 --set optimizer.warmup_steps=10", "v6e-16")
    assert same is not None
    assert "fits v6e-16" in same.line


def test_what_trains_nothing_is_not_spoken_of() -> None:
    assert preflight.verdict_on("extract somewhere.toml", "v6e-16") is None


def test_a_config_that_cant_be_read_is_named() -> None:
    output = preflight.verdict_on("train nowhere.toml", "v6e-16")
    assert output is not None
    assert output.warn
    assert "no such file or packaged config" in output.line


def test_an_answer_that_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "TIMEOUT_S", 0.01)
    output = preflight.verdict_on(RUN, "v6e-16")
    assert output is not None
    assert output.warn
    assert output.line.startswith(f"`{RUN}` isn't checked: no answer within 0.01 s; run tpu preflight ")
