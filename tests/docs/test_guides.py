"""The commands of the three guides, executed as they are printed; and the pages that name commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cli.__main__ import COMMANDS, SUBCOMMANDS
from rehearsal.scenario.guides import commands
from rehearsal.scenario.scenario import find, load

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"


def run(page: str, folder: Path) -> str:
    """All blocks of a page in one shell, below `folder`; what they printed."""
    script = "set -e\n" + "".join(commands(GUIDES / page).values()).replace("/tmp/guide", str(folder))
    environment = {name: value for name, value in os.environ.items() if name != "DATA_DIR"}
    environment |= {"JAX_PLATFORMS": "cpu", "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_training_guide_trains_is_killed_resumes_and_exports(tmp_path: Path) -> None:
    output = run("training.md", tmp_path)
    assert "tiny.toml on v6e-16: FITS" in output
    assert re.search(r"^ +60  complete$", output, re.MULTILINE)
    assert re.search(r"60 steps in [2-9] starts", output), "it was killed on the way"
    assert "right, as the run ended" in output
    assert (tmp_path / "hf" / "config.json").is_file()


@pytest.mark.slow
def test_the_activations_guide_extracts_verifies_and_reads(tmp_path: Path) -> None:
    output = run("activations.md", tmp_path)
    assert "extractions/first: 1 shards, 3 documents, 0 problems\n" in output
    assert re.search(r"^tree: sample 0, 15 tokens\n  resid_post.0 +15x64 ", output, re.MULTILINE)
    assert re.search(r"^river 16 \{'resid_post\.0': \(16, 64\), ", output, re.MULTILINE)


def test_the_infrastructure_guide_is_run_by_a_scenario() -> None:
    steps = [step.arguments for step in load(find("guides")).steps if step.kind == "guide"]
    sections = [section for step in steps for section in step["sections"]]
    first, *others = commands(GUIDES / "infrastructure.md")
    assert first.startswith("1. Log in"), "a user's own login to a real cloud"
    assert sections == others
    assert {step["page"] for step in steps} == {"docs/guides/infrastructure.md"}


def test_every_command_that_a_page_names_exists() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("**/*.md"),
    ]
    known = {*COMMANDS, *SUBCOMMANDS}
    named = {
        (path.name, name)
        for path in pages
        if path.name != "log.md"
        for name in re.findall(r"(?:`|^ {4}|^|\n)tpu ([a-z][a-z-]*)\b", path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert {item for item in named if item[1] not in known and item[1] != "COMMAND"} == set()


def test_every_line_of_a_guide_is_understood_by_its_command() -> None:
    lines = [
        line
        for page in GUIDES.glob("*.md")
        for line in re.findall(r"^(?:    )?(tpu [a-z].*?)(?: +#.*)?$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(lines) >= 10
    for line in lines:
        partition = line.partition(" -- ")[0]  # what follows is the program's own
        words = [word for word in shlex.split(partition)[1:] if word.startswith("--")]
        name = shlex.split(line)[1]
        code = "import sys; from cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", code, name, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert {word.partition("=")[0] for word in words} <= set(re.findall(r"--[a-z-]+", done.stdout)), line


def test_the_workflow_to_copy_calls_what_there_is() -> None:
    text = (GUIDES / "plan-comment.yml").read_text(encoding="utf-8")
    steps = yaml.safe_load(text)["jobs"]["plan"]["steps"]
    lines = [step["run"] for step in steps if "run" in step]
    assert any("tpu plan" in line and "--format markdown" in line for line in lines)
    scripts = re.findall(r"tools/[a-z]+\.sh(?: [a-z]+)+", " ".join(lines))
    assert scripts
    for script in scripts:
        name, *parts = script.split()
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [part for part in parts if f"\ninstall_{part}()" not in text] == [], script
