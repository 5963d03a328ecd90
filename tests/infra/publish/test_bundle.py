"""Manifests, and the wheel that the project builds for itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from infra.publish import wheels
from infra.publish.bundle import assemble
from infra.publish.errors import PublishError
from infra.settings.sources import PROGRAM


def test_a_manifest_is_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    sources = {}
    for name, content in {"uv": b"1", "gcsfuse": b"22", "wheels/a-1+local-py3-none-any.whl": b"333"}.items():
        sources[name] = tmp_path / name
        sources[name].write_bytes(content)
    bundle = assemble(sources)
    assert [file.path for file in bundle.files] == sorted(sources)
    assert bundle.id == hashlib.sha256(bundle.manifest).hexdigest()
    assert bundle.size_bytes == 6
    check = ["sha256sum", "--check", "--strict", "--quiet"]
    assert subprocess.run(check, cwd=tmp_path, input=bundle.manifest, check=False).returncode == 0
    sources["uv"].write_bytes(b"2")
    assert subprocess.run(check, cwd=tmp_path, input=bundle.manifest, check=False).returncode == 1
    assert assemble(sources).id != bundle.id


@pytest.mark.parametrize("path", ["../etc/passwd", "/uv", "a b", "wheels/../../x", "", "-rf", "a\nb"])
def test_a_path_that_hosts_would_refuse_is_refused_here(tmp_path: Path, path: str) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(PublishError, match="can't be a path in a bundle"):
        assemble({path: tmp_path / "x"})


def test_the_same_tree_gives_the_same_wheel(tmp_path: Path, workload: Path) -> None:
    """Elsewhere, with other times, another umask and leftovers of Python in the tree."""
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name in ("pyproject.toml", ".gitignore", "LICENSE"):
        shutil.copyfile(PROGRAM / name, copy / name)
    for package in wheels.shipped():
        shutil.copytree(package, copy / package.name, copy_function=shutil.copyfile)
    (copy / "workload" / "__pycache__").mkdir(exist_ok=True)
    (copy / "workload" / "__pycache__" / "left.cpython-311.pyc").write_bytes(b"over")
    before = os.umask(0o077)
    try:
        second = wheels.build_workload(tmp_path / "two", copy)
    finally:
        os.umask(before)
    assert workload.name == second.name
    assert workload.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(second).namelist()
    packed = {"workload/host/barrier.py", "workload/preflight/page.html"}
    assert packed | {"settings_schema/parser.py", "views/base.html"} <= {*names}
    assert not [name for name in names if name.endswith(".pyc")]


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=r"(?s)^trying failed \(exit status 3\):\nwhy$"):
        wheels.run(["sh", "-c", "echo why >&2; exit 3"], "trying", cwd=tmp_path)


def test_locked_wheels_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's work is replaced; that it checks hashes and platforms is in its arguments."""
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "cache"))
    commands: list[list[str]] = []

    def pip(command: list[str], doing: str) -> None:
        commands.append(command)
        Path(command[-1]).mkdir()
        Path(command[-1], "a-1-py3-none-any.whl").write_bytes(b"a")

    monkeypatch.setattr(wheels, "run", pip)
    lock = tmp_path / "tpu.txt"
    lock.write_text("a==1 --hash=sha256:00")
    first = wheels.locked(lock)
    assert [wheel.name for wheel in first] == ["a-1-py3-none-any.whl"]
    assert wheels.locked(lock) == first
    assert len(commands) == 1
    assert {"--require-hashes", "--no-deps", ":all:", "manylinux_2_35_x86_64"} <= set(commands[0])
    lock.write_text("a==2 --hash=sha256:00")
    wheels.locked(lock)
    assert len(commands) == 2
    assert sorted(path.name for path in (tmp_path / "cache/wheels").iterdir()) == sorted(
        {wheel.parent.name for wheel in first} | {wheels.locked(lock)[0].parent.name}
    )
