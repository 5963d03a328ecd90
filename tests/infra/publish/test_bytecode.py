"""Bytecode in the bundle: the host's sources, compiled here, used there."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.publish import bytecode
from infra.publish.errors import PublishError
from tests.infra.publish.test_requirements import make_wheel

PACKAGES = f"venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
USES = "import addon, json"


@pytest.fixture(scope="module")
def sources(
    packed: tuple[Path, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[Path]]]:
    """An interpreter's archive, and wheels of which one is not imported; the cache is of this module."""
    folder = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_CACHE", str(folder / "cache"))
        yield packed[0], [make_wheel(folder, "addon", "0.1"), make_wheel(folder, "unused", "1")]


def test_hosts_take_what_is_imported_whatever_the_times_of_their_sources(
    sources: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    made = bytecode.compiled(*sources, USES)
    with tarfile.open(made) as tar:
        names = [name.replace("__pycache__/", "").split(".cpython")[0] for name in tar.getnames()]
    assert f"{PACKAGES}/addon" in names
    assert f"{PACKAGES}/unused" not in names
    assert [name for name in names if name.endswith("/json/__init__")]
    host = tmp_path / "host"
    subprocess.run(["tar", "-xf", made, "--one-top-level=host"], cwd=tmp_path, check=True)
    # A host would compile something else from this, so the value shows which of the two was taken.
    (host / PACKAGES / "addon.py").write_text("VERSION = 'of the source'\n")
    done = subprocess.run(
        [sys.executable, "-c", "import addon, json; print(json.dumps([addon.VERSION, addon.__file__]))"],
        env={"PYTHONPATH": str(host / PACKAGES)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == ["0.1", f"{host}/{PACKAGES}/addon.py"]


def test_the_same_sources_give_the_same_bytes(sources: tuple[Path, list[Path]]) -> None:
    python, wheels = sources
    first = bytecode.compiled(python, wheels, USES)
    before = first.read_bytes()
    assert bytecode.compiled(python, wheels[::-1], USES) == first, "it is made once"
    first.unlink()
    assert bytecode.compiled(python, wheels, USES).read_bytes() == before


def test_what_cannot_be_imported_is_not_published(sources: tuple[Path, list[Path]]) -> None:
    why = "so not on a host either: ModuleNotFoundError: No module named 'addon'"
    with pytest.raises(PublishError, match=why):
        bytecode.compiled(sources[0], sources[1][1:], USES)
