"""Bytecode in the bundle: the host's sources, compiled here, used there."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra.publish import archive, bytecode
from infra.publish.errors import PublishError

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = f"venv/lib/{VERSION}/site-packages"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's environment with one module of each kind, all pycs of it unpacked."""
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "cache"))
    sources = {
        f"python/lib/{VERSION}/standard.py": b"VALUE = 1\n",
        f"{PACKAGES}/one/__init__.py": b"VALUE = 2\n",
        f"{PACKAGES}/one/two.py": b"def where():\n    raise ValueError\n",
    }
    archive.write(tmp_path / "python.tar.gz", {name: sources[name] for name in sources if name[0] == "p"})
    with zipfile.ZipFile(tmp_path / "one-1-py3-none-any.whl", "w") as wheel:
        for name in sources:
            if name.startswith(PACKAGES):
                wheel.writestr(name.removeprefix(f"{PACKAGES}/"), sources[name])
        wheel.writestr("one/unused.py", b"")
    monkeypatch.setattr(bytecode, "imported", lambda: sorted([*sources, f"{PACKAGES}/only_here.py"]))
    host = tmp_path / "host"
    for name, content in sources.items():
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        # What a host would compile from these is something else, so it shows which of the two it took.
        (host / name).write_bytes(content.replace(b"VALUE = ", b"VALUE = -"))
    packed = bytecode.compiled(tmp_path / "python.tar.gz", [tmp_path / "one-1-py3-none-any.whl"])
    subprocess.run(["tar", "-xf", packed, "-C", host], check=True)
    return host


def test_hosts_take_it_whatever_the_times_of_their_sources(made: Path) -> None:
    code = """if True:
        import json, sys, traceback
        import one.two, standard
        try:
            one.two.where()
        except ValueError as error:
            place = traceback.extract_tb(error.__traceback__)[-1].filename
        print(json.dumps([standard.VALUE, one.VALUE, place]))
    """
    paths = f"{made}/python/lib/{VERSION}:{made}/{PACKAGES}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, 2, f"{made}/{PACKAGES}/one/two.py"]


def test_only_what_is_imported_and_what_hosts_have_is_compiled(made: Path) -> None:
    assert sorted(path.name.partition(".")[0] for path in made.rglob("*.pyc")) == [
        "__init__",
        "standard",
        "two",
    ]


def test_the_same_sources_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    (first,) = (tmp_path / "cache/bytecode").iterdir()
    before = first.read_bytes()
    first.unlink()
    bytecode.compiled(tmp_path / "python.tar.gz", [tmp_path / "one-1-py3-none-any.whl"])
    assert first.read_bytes() == before


def test_the_trainers_modules_are_found_with_those_that_only_tracing_imports() -> None:
    names = bytecode.imported()
    assert f"{PACKAGES}/jax/__init__.py" in names
    assert f"{PACKAGES}/jaxlib/mlir/dialects/_mhlo_ops_gen.py" in names
    assert f"python/lib/{VERSION}/json/__init__.py" in names
    assert not [name for name in names if "workload" in name], "its wheel changes with every commit"


def test_a_trainer_that_cannot_be_imported_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytecode, "ROOT", tmp_path)
    with pytest.raises(PublishError, match=r"so not on a host either: .*No module named 'workload'"):
        bytecode.imported()
