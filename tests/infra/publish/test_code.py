"""The user's own folder as an archive, and what is said of one that can't be."""

from __future__ import annotations

import os
import socket
import tarfile
import tempfile
from pathlib import Path

import pytest

from infra.publish import code
from infra.publish.errors import PublishError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program with all that a working folder gathers."""
    made = tmp_path / "training"
    for name in (
        "train.py",
        "pkg/model.py",
        "pkg/__pycache__/model.pyc",
        ".git/config",
        ".venv/x.py",
        "old.pyc",
    ):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    (made / "env3").mkdir()
    (made / "env3/pyvenv.cfg").write_text("")
    (made / "start.sh").write_text("#!/bin/sh\n")
    (made / "start.sh").chmod(0o755)
    (made / "pkg/latest.py").symlink_to("model.py")
    return made


def entries(archive: Path) -> dict[str, tuple[str, int]]:
    with tarfile.open(archive) as tar:
        return {entry.name: (entry.linkname, entry.mode & 0o111) for entry in tar}


def test_it_holds_the_code_with_modes_and_links_and_nothing_that_tools_left(folder: Path) -> None:
    archive = code.pack(folder, "training", folder.parent / "a.tar.gz")
    assert entries(archive) == {
        "pkg/latest.py": ("model.py", 0),
        "pkg/model.py": ("", 0),
        "start.sh": ("", 0o111),
        "train.py": ("", 0),
    }


def test_the_same_files_are_the_same_bytes(folder: Path) -> None:
    first = code.pack(folder, "training", folder.parent / "a.tar.gz").read_bytes()
    os.utime(folder / "train.py", (1, 1))
    (folder / "pkg/__pycache__/other.pyc").write_text("new")
    assert code.pack(folder, "training", folder.parent / "b.tar.gz").read_bytes() == first
    (folder / "train.py").write_text("changed")
    assert code.pack(folder, "training", folder.parent / "c.tar.gz").read_bytes() != first


def test_a_folder_that_is_too_large_is_said_with_its_largest_entries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "data").mkdir()
    for name in ("a.bin", "b.bin"):
        with (folder / "data" / name).open("wb") as file:
            file.truncate(60 << 20)
    with pytest.raises(PublishError) as refusal:
        code.pack(folder, "training", folder.parent / "a.tar.gz")
    assert str(refusal.value).startswith(
        "tpu:code: training has 120.0 MiB, at most 100 MiB: data/ 120.0 MiB, pkg/ 0.0 MiB"
    )
    assert not (folder.parent / "a.tar.gz").exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [("/etc/passwd", "leads to /etc/passwd, out of the folder"), ("../secret", "leads to ../secret, out of")],
)
def test_links_out_of_the_folder_are_refused(folder: Path, target: str, message: str) -> None:
    (folder / "link").symlink_to(target)
    with pytest.raises(PublishError, match=message):
        code.pack(folder, "training", folder.parent / "a.tar.gz")


def test_what_is_no_file_is_refused() -> None:
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/s")
        with pytest.raises(PublishError, match="training/s is neither file, folder nor link"):
            code.pack(Path(short), "training", Path(short, "a.tar.gz"))


@pytest.mark.parametrize("make", ["", "file", "empty"])
def test_a_folder_that_is_not_there_is_said(tmp_path: Path, make: str) -> None:
    place = tmp_path / "training"
    if make == "file":
        place.write_text("")
    elif make == "empty":
        (place / ".git").mkdir(parents=True)
    message = {"": "does not exist", "file": "is no folder", "empty": "holds no file"}[make]
    with pytest.raises(PublishError, match=f"^tpu:code: training {message}: "):
        code.pack(place, "training", tmp_path / "a.tar.gz")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("python trian.py", "isn't in training"),
        ("./pkg/start.sh", "isn't in training"),
        ("./.venv/x.py", "isn't in training"),
        ("./train.py", "isn't executable: chmod +x training/train.py"),
        ("./start.sh --fast", ""),
        ("python pkg/model.py", ""),
        ("python -m pkg.model", ""),
        ("/usr/bin/env python train.py", ""),
        ("train tiny.toml", ""),
    ],
)
def test_a_run_starts_what_the_folder_holds(folder: Path, run: str, message: str) -> None:
    if not message:
        code.require({"tpu:slices[0].run": run}, folder, "training")
        return
    with pytest.raises(PublishError) as refusal:
        code.require({"tpu:slices[0].run": run}, folder, "training")
    assert str(refusal.value).startswith(f'tpu:slices[0].run: "{run}" needs ')
    assert message in str(refusal.value)


@pytest.mark.parametrize(("content", "message"), [
    (b"x = 1\nfor i in x\n    print(i)\n", "training/bad.py:2: expected ':': for i in x\n    fix:"),
    (b"x = '\\d'\nprint(x is 3)\n", ""),  # warns
    (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", ""),
    (b"x = '\xe9'\n", "training/bad.py"),
    (b"\0", "training/bad.py"),
])  # fmt: skip
def test_a_script_that_hosts_cant_compile_is_refused_by_its_line(
    content: bytes, message: str, folder: Path
) -> None:
    """It was found on the slice, which was billed, and started 18 times."""
    (folder / "bad.py").write_bytes(content)
    runs = {"tpu:slices[0].run": "python bad.py"}
    code.require(runs, folder, "training")  # an image's Python may be another
    if not message:
        code.require(runs, folder, "training", runs)
        return
    with pytest.raises(PublishError) as refusal:
        code.require(runs, folder, "training", runs)
    assert str(refusal.value).startswith(message)
