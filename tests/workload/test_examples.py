"""The programs of examples/, run as their pages print them; every page, and every command of it, is run."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rehearsal.scenario.guides import commands
from rehearsal.scenario.scenario import find, load
from tests.limits import HANG_S
from tests.parity import environment
from tests.workload.conftest import free_port
from tools.blocks import ROOT
from workload.train import config as configs

EXAMPLES = ROOT / "examples"
PAGES = {folder.name: folder / "README.md" for folder in EXAMPLES.iterdir() if folder.is_dir()}
HERE = "Try it here"
PRINTED = {
    "flax": r"(?s)(step 60/60.*){4}",
    "llama-sft": r"(?s)step 40/40.*^config\.json$.*^model\.safetensors$.*^tokenizer\.json$",
    "lora": r"(?s)step 40/40.*adapters:.*adapter_model\.safetensors.*merged:.*\nmodel\.safetensors$",
    "own-model": r"(?s)from step 0\n.*from step 40\n.*step 80 of 80",
}
"""What the commands of a page's section `HERE` print, by the folder."""
TESTED = {
    "pulumi-program": "tests/examples/test_pulumi_program_up.py",
    "sae": "tests/workload/test_examples.py",
}
"""The tests of pages whose commands need other surroundings than a shell at the root of the clone."""
STEP = re.compile(r"step (\d+) of \d+: loss (\S+)")
WORKERS = 4
Start = Callable[[int], "list[subprocess.Popen[str]]"]


def typed(scenario: str) -> Iterator[str]:
    """Yield the command lines of a scenario, those of the guides that it runs among them."""
    for step in load(find(scenario)).steps:
        if step.kind == "guide":
            known = commands(ROOT / step.arguments["page"])
            for section in step.arguments["sections"]:
                yield from known[section].splitlines()
        yield from str(step.arguments.get("run", "")).splitlines()


def within(line: str, longer: str) -> bool:
    """Return True if the words of a line are among those of a longer one, in this order."""
    rest = iter(longer.split())
    return all(word in rest for word in line.split())


def run_elsewhere(text: str) -> list[str]:
    """Return the commands of the guides that a page links to, and of the scenarios that it names."""
    guides = re.findall(r"\]\(\.\./\.\./(docs/guides/\w[\w-]*\.md)", text)
    lines = [line for name in re.findall(r"`tpu rehearsal run ([\w-]+)`", text) for line in typed(name)]
    for guide in guides:
        lines += "".join(commands(ROOT / guide).values()).splitlines()
    return lines


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_command_of_a_page_is_run(name: str) -> None:
    """By a test below, by the scenario that it names, or by those of its guide."""
    sections = commands(PAGES[name])
    assert sections, "no block of commands"
    assert (HERE in sections) == (name in PRINTED)
    if name in TESTED:
        assert f"examples/{name}/README.md" in (ROOT / TESTED[name]).read_text("utf-8")
        return
    known = run_elsewhere(PAGES[name].read_text("utf-8"))
    lines = [line for heading, block in sections.items() if heading != HERE for line in block.splitlines()]
    assert [line for line in lines if not any(within(line, other) for other in known)] == []


def test_a_command_that_nothing_runs_is_found() -> None:
    text = "`tpu rehearsal run modules` [guide](../../docs/guides/environments.md)"
    known = run_elsewhere(text)
    assert any(within("tpu run dev examples/own-model --slice v6e-16", line) for line in known)
    assert "tpu plan eu" in known
    assert not any(within("tpu run dev examples/own-model --slice v6e-8", line) for line in known)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "slurm").rglob("*.sbatch")), ids=lambda path: path.name)
def test_each_job_is_run_by_what_its_page_names(path: Path) -> None:
    rows = re.findall(r"(?m)^\| \[.*\]\((.*)\) \| .* \| (.*) \|$", PAGES["slurm"].read_text("utf-8"))
    (by,) = [cell for link, cell in rows if EXAMPLES / "slurm" / link == path]
    tests = re.findall(r"`(test_\w+\.py)`", by)
    assert all(path.name in (ROOT / "tests/docs" / test).read_text("utf-8") for test in tests)
    scenarios = re.findall(r"`(slurm[\w-]*)`", by)
    assert all(any(path.name in line for line in typed(name)) for name in scenarios)
    assert tests or scenarios


@pytest.mark.parametrize("name", ["sft", "lora"])
def test_a_config_of_fine_tuning_is_the_packaged_recipe_in_the_users_bucket(name: str) -> None:
    (path,) = EXAMPLES.glob(f"*/{name}.toml")
    own, recipe = configs.load(str(path)), configs.load(f"llama-3.1-8b-{name}.toml")
    assert own.train.init_from.startswith("gs://my-project-checkpoints/")
    assert own.data.path.startswith("gs://my-project-checkpoints/")
    train = replace(recipe.train, init_from=own.train.init_from, steps=own.train.steps)
    assert own == replace(recipe, train=train, data=replace(recipe.data, path=own.data.path))


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_what_a_page_tries_on_this_machine_does_what_it_says(name: str, tmp_path: Path) -> None:
    text = commands(PAGES[name])[HERE].replace("/tmp/", f"{tmp_path}/")
    surroundings = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "GCE_METADATA_HOST": "127.0.0.1:1",
    }
    done = subprocess.run(
        ["bash", "-ec", text], cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(PRINTED[name], done.stdout, re.MULTILINE), done.stdout


@pytest.fixture
def start(storage_url: str, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(steps: int) -> list[subprocess.Popen[str]]:
        """Start the workers of a run that saves to the bucket."""
        shared = {
            **os.environ,
            "STEPS": str(steps),
            "CHECKPOINT_URL": f"gs://bucket/{tmp_path.name}",
            "STORAGE_EMULATOR_HOST": storage_url,
            "TENSORSTORE_GCS_HTTP_URL": storage_url,
            "WORKER_COUNT": str(WORKERS),
            "COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "JAX_PLATFORMS": "cpu",
        }
        line = [sys.executable, str(ROOT / "examples/own-model/train.py")]
        workers = [
            subprocess.Popen(
                line, env={**shared, "WORKER_ID": str(worker)}, stdout=subprocess.PIPE, text=True
            )
            for worker in range(WORKERS)
        ]
        started.extend(workers)
        return workers

    yield start
    for worker in started:
        worker.kill()


@pytest.mark.prove
@pytest.mark.slow
def test_four_workers_of_an_own_model_resume_from_the_bucket(start: Start) -> None:
    workers = start(200)
    assert workers[0].stdout is not None
    for line in workers[0].stdout:
        if line.startswith("step 60 "):
            break
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.wait(HANG_S)
    outputs = [worker.communicate(timeout=HANG_S)[0] for worker in start(100)]
    first = [int(re.findall(r"4 devices, from step (\d+)", output)[0]) for output in outputs]
    assert {*first} == {first[0]}
    assert first[0] >= 40
    losses = dict(STEP.findall(outputs[0]))
    assert list(losses)[-1] == "100"
    assert float(losses["100"]) < 3.5  # ln(64) = 4.16 before training


@pytest.mark.prove
@pytest.mark.slow
def test_the_autoencoders_page_trains_on_an_extraction(extracted: Path, tmp_path: Path) -> None:
    search = ":".join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    (text,) = commands(ROOT / "examples/sae/README.md").values()
    text = text.replace("/tmp/guide/extractions/first", str(extracted)).replace("/tmp/guide", str(tmp_path))
    _, *words = shlex.split(text)
    line = [environment.python(), *words, "--epochs", "3"]
    done = subprocess.run(
        line, cwd=ROOT, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    unexplained = [float(share) for share in re.findall(r"unexplained variance (\S+),", done.stdout)]
    assert len(unexplained) == 3
    assert unexplained[2] < unexplained[0] < 1
    assert (tmp_path / "sae.pt").stat().st_size > 0
