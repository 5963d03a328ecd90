"""docs/extraction.md and docs/fleet.md: the checks that they name exist; the commands work."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from workload.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extraction.md").read_text(encoding="utf-8")
DEFECTS, SCRIPTS_DEFECTS = 12, 11  # of activation-extract


def test_every_defect_of_activation_extract_has_a_check_that_exists() -> None:
    rows = re.findall(r"^\| (\d+) \| .+ \| (`test_.+`) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, DEFECTS + 1))
    named = [name for _, names in rows for name in re.findall(r"`(\w+)`", names)]
    written = (ROOT / "tests/workload/test_activation_extract.py").read_text(encoding="utf-8")
    assert set(named) == set(re.findall(r"^def (test_\w+)", written, re.MULTILINE))
    assert len(named) == len(set(named))


def test_every_defect_of_activation_extracts_scripts_has_a_check_that_exists() -> None:
    page = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .+ \| (`test_.+`) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, SCRIPTS_DEFECTS + 1))
    named = {name for _, names in rows for name in re.findall(r"`(\w+)`", names)}
    everywhere = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert named <= set(re.findall(r"^def (test_\w+)", everywhere, re.MULTILINE))


def lines() -> list[list[str]]:
    result = [shlex.split(line) for line in re.findall(r"^    (.*\bworkload .*)$", PAGE, re.MULTILINE)]
    return [line for line in result if "workload" in line]


def commands() -> list[list[str]]:
    return [line[line.index("workload") + 1 :] for line in lines()]


def test_every_command_of_the_page_is_one_that_a_checkout_has() -> None:
    begun = [" ".join(line[: line.index("workload") + 1]) for line in lines()]
    assert len(begun) >= 8
    assert {re.sub(r"^[A-Z_]+=\S+ ", "", words) for words in begun} == {"workload"}


@pytest.mark.parametrize("line", commands(), ids=" ".join)
def test_every_command_of_the_page_is_understood(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Options that no parser knows end it with a usage message; what isn't there ends it later, with ours."""
    with pytest.raises(SystemExit) as left:
        main([*line, "--help"])
    assert left.value.code == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {word for word in line if word.startswith("--")} <= known


@pytest.mark.slow
def test_what_the_page_offers_to_try_works_in_a_checkout(tmp_path: Path) -> None:
    block = PAGE.partition("## Try it on this machine")[2].partition("\n## ")[0]
    tried = re.findall(r"^    (.+)$", block, re.MULTILINE)
    assert len(tried) == 7
    script = "set -e\n" + "\n".join(tried).replace("/tmp/try", str(tmp_path))
    environment = {name: value for name, value in os.environ.items() if name != "DATA_DIR"}
    environment |= {"JAX_PLATFORMS": "cpu", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "extractions/first: 1 shards, 3 documents, 0 problems\n" in done.stdout
    assert re.search(
        r"^tree: sample 0, 15 tokens\n  resid_post.0 +15x64 .*\n  resid_post.1 ", done.stdout, re.MULTILINE
    )
