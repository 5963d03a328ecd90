"""The wheel of package/, built and installed offline into a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.settings.sources import PROGRAM
from tests.limits import HANG_S

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pip(*arguments: str) -> None:
    """Run pip without an index, and without an environment of its own for the build."""
    line = [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--no-index", "--no-cache-dir"]
    subprocess.run([*line, "--disable-pip-version-check"], check=True, timeout=HANG_S)


@pytest.fixture(name="wheel", scope="package")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(PROGRAM / "package"))
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(name="installed", scope="package")
def _installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-compile", "--target", str(target), str(wheel))
    return target


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Path:
    """A folder with an environment's file, and nothing else."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Pulumi.dev.yaml").write_bytes((PROGRAM / "Pulumi.dev.yaml").read_bytes())
    return folder


@pytest.fixture(name="tpu")
def _tpu(installed: Path, project: Path) -> Run:
    """Run the installed `tpu` in the project's folder, or in another."""

    def run(*arguments: str, cwd: Path = project, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(installed / "bin" / "tpu"), *arguments],
            cwd=cwd, env={**os.environ, "PYTHONPATH": str(installed), **variables},
            capture_output=True, text=True, check=False, timeout=HANG_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run
