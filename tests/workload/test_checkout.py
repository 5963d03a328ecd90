"""`tpu` as the wheel installs it: the checkout's own, wherever in it one is."""

import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from infra.publish.wheels import build_workload

ENTRY = "import sys; sys.argv[0] = 'tpu'; from workload.checkout import entry; entry()"


def tpu(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    line = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {ENTRY}", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "__main__.py").write_text("")
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    return tmp_path


def test_it_becomes_the_checkouts_own(checkout: Path) -> None:
    own = checkout / ".venv" / "bin" / "tpu"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n')
    own.chmod(0o755)
    done = tpu(checkout / "docs" / "deep", "plan", "dev two")
    assert (done.returncode, done.stdout) == (7, "plan\ndev two\n")


def test_without_set_up_or_without_a_checkout_it_says_what_to_do(checkout: Path) -> None:
    done = tpu(checkout)
    assert (done.returncode, f"fix: make -C {checkout} setup" in done.stderr) == (2, True)
    (checkout / "cli" / "__main__.py").unlink()
    done = tpu(checkout)
    assert (done.returncode, "isn't in a checkout of the project" in done.stderr) == (2, True)


def test_the_wheel_installs_both_commands(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_workload(tmp_path)) as wheel:
        (name,) = (entry for entry in wheel.namelist() if entry.endswith("entry_points.txt"))
        scripts = ConfigParser()
        scripts.read_string(wheel.read(name).decode())
    assert {*scripts["console_scripts"]} == {"tpu", "workload"}
