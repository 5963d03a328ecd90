"""tools/setup.sh: what it links must be programs, whatever PATH holds."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_another_clones_environment_on_path_is_no_source_of_programs(tmp_path: Path) -> None:
    """Two clones share an environment: linking what the other's name for it holds would be a circle."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "tools", clone / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "environment" / "bin").mkdir(parents=True)
    (clone / ".venv").symlink_to(tmp_path / "environment")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".venv").symlink_to(tmp_path / "environment")
    resolve = (ROOT / ".venv" / "bin").resolve()
    entries = [entry for entry in os.environ["PATH"].split(":") if Path(entry).resolve() != resolve]
    path = ":".join([str(tmp_path / "other" / ".venv" / "bin"), ".venv/bin", *entries])
    for _ in range(2):
        command = ["tools/setup.sh", "pulumi", "gcsfuse"]
        subprocess.run(command, cwd=clone, env={**os.environ, "PATH": path}, check=True)
    for program in ("pulumi", "gcsfuse"):
        result = (clone / ".venv" / "bin" / program).resolve(strict=True)
        assert os.access(result, os.X_OK)
        assert result.parent != tmp_path / "environment" / "bin"
