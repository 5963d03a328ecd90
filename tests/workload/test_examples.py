"""The programs of examples/, run as their pages print them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rehearsal.scenario.guides import commands
from tests.limits import HANG_S
from tests.parity import environment
from tests.workload.conftest import free_port
from tools.blocks import ROOT

pytestmark = [pytest.mark.prove, pytest.mark.slow]

STEP = re.compile(r"step (\d+) of \d+: loss (\S+)")
Start = Callable[[int], "list[subprocess.Popen[str]]"]


def lines_of(page: str, folder: Path, python: str) -> list[list[str]]:
    """Return the words of a page's commands, below another folder and by this interpreter."""
    text = "".join(commands(ROOT / page).values()).replace("/tmp/", f"{folder}/")
    return [shlex.split(line.replace(" python ", f" {python} ")) for line in text.splitlines()]


@pytest.fixture
def start(storage_url: str, tmp_path: Path) -> Start:
    def start(steps: int) -> list[subprocess.Popen[str]]:
        """Start the two workers of a run that saves to the bucket."""
        shared = {
            **os.environ,
            "STEPS": str(steps),
            "CHECKPOINT_URL": f"gs://bucket/{tmp_path.name}",
            "STORAGE_EMULATOR_HOST": storage_url,
            "TENSORSTORE_GCS_HTTP_URL": storage_url,
            "WORKER_COUNT": "2",
            "COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "JAX_PLATFORMS": "cpu",
        }
        line = [sys.executable, str(ROOT / "examples/own-model/train.py")]
        return [
            subprocess.Popen(
                line, env={**shared, "WORKER_ID": str(worker)}, stdout=subprocess.PIPE, text=True
            )
            for worker in range(2)
        ]

    return start


def test_two_workers_of_an_own_model_resume_from_the_bucket(start: Start) -> None:
    workers = start(200)
    assert workers[0].stdout is not None
    for line in workers[0].stdout:
        if line.startswith("step 60 "):
            break
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.wait(HANG_S)
    outputs = [worker.communicate(timeout=HANG_S)[0] for worker in start(100)]
    first = [int(re.findall(r"2 devices, from step (\d+)", output)[0]) for output in outputs]
    assert first[0] == first[1] >= 40
    losses = dict(STEP.findall(outputs[0]))
    assert list(losses)[-1] == "100"
    assert float(losses["100"]) < 3.5  # ln(64) = 4.16 before training


def test_the_page_of_an_own_model_trains_and_resumes(tmp_path: Path) -> None:
    outputs = []
    for line in lines_of("examples/own-model/README.md", tmp_path, sys.executable):
        done = subprocess.run(
            ["env", *line], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "from step 0\n" in outputs[0]
    assert "from step 40\n" in outputs[1]
    assert "step 80 of 80" in outputs[1]


def test_the_autoencoders_page_trains_on_an_extraction(extracted: Path, tmp_path: Path) -> None:
    search = ":".join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    (line,) = lines_of("examples/sae/README.md", tmp_path, environment.python())
    line = [environment.python(), *line[1:], "--epochs", "3"]
    line[line.index(f"{tmp_path}/guide/extractions/first")] = str(extracted)
    line[line.index("--out") + 1] = str(tmp_path / "sae.pt")
    done = subprocess.run(
        line, cwd=ROOT, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    unexplained = [float(share) for share in re.findall(r"unexplained variance (\S+),", done.stdout)]
    assert len(unexplained) == 3
    assert unexplained[2] < unexplained[0] < 1
    assert (tmp_path / "sae.pt").stat().st_size > 0
