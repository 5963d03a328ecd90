"""Messages of the compiler are redirected, and shown after a failure, even if it ends the process."""

import subprocess
import sys
from pathlib import Path

from tests.limits import HANG_S

CODE = """
import os, sys, tempfile
from pathlib import Path
from workload.preflight.quiet import quiet
folder = tempfile.mkdtemp(dir=sys.argv[1])
with quiet(Path(folder) / "log") as log:
    os.write(2, b"E0000 no such topology\\n")
    if sys.argv[2] == "abort":
        os.abort()
    print(log.hint())
"""


def run(tmp_path: Path, how: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-c", CODE, str(tmp_path), how]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=HANG_S)


def test_an_orderly_end_says_nothing_of_what_the_compiler_said(tmp_path: Path) -> None:
    done = run(tmp_path, "fine")
    assert (done.returncode, done.stderr) == (0, "")
    assert "last messages of the compiler: E0000 no such topology" in done.stdout


def test_a_compiler_that_aborts_has_its_last_words_told(tmp_path: Path) -> None:
    done = run(tmp_path, "abort")
    assert done.returncode == -6
    assert "the compiler aborted; its last messages:\n    E0000 no such topology" in done.stderr
    assert list(tmp_path.iterdir()) == []
