"""The published code in /opt/training, and what people have installed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.publish import archive
from workload.host import code
from workload.host.__main__ import main
from workload.host.errors import CodeError

Publish = Callable[..., code.Installed]


def make(folder: Path) -> Publish:
    """Publish files, as name=content, and install them."""

    def publish(files: dict[str, str] | None, links: dict[str, str] | None = None) -> code.Installed:
        packed = None
        if files is not None:
            packed = folder / "code.tar.gz"
            archive.write(
                packed, {k: v.encode() for k, v in files.items()}, links, {"start.sh"} & files.keys()
            )
        return code.install(packed, folder / "training", folder / "state" / "code.json")

    return publish


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    return make(tmp_path)


def installed(tmp_path: Path) -> dict[str, str]:
    top = tmp_path / "training"
    return {
        path.relative_to(top).as_posix(): path.read_text()
        for path in sorted(top.rglob("*"))
        if not path.is_dir()
    }


def test_it_is_there_with_its_modes_and_links(publish: Publish, tmp_path: Path) -> None:
    done = publish({"train.py": "1", "start.sh": "#!", "pkg/a.py": "a"}, {"pkg/b.py": "a.py"})
    assert str(done) == "4 files, 4 of them new"
    top = tmp_path / "training"
    assert installed(tmp_path) == {"pkg/a.py": "a", "pkg/b.py": "a", "start.sh": "#!", "train.py": "1"}
    assert (top / "pkg/b.py").is_symlink()
    modes = {name: (top / name).stat().st_mode & 0o7777 for name in ("train.py", "start.sh", "pkg")}
    assert modes == {"train.py": 0o644, "start.sh": 0o755, "pkg": 0o1777}


def test_the_next_boot_changes_nothing(publish: Publish, tmp_path: Path) -> None:
    publish({"train.py": "1"})
    before = (tmp_path / "training/train.py").stat()
    assert str(publish({"train.py": "1"})) == "1 files, 0 of them new"
    after = (tmp_path / "training/train.py").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_new_bundle_replaces_its_files_and_takes_away_those_it_lacks(
    publish: Publish, tmp_path: Path
) -> None:
    publish({"train.py": "1", "old/a.py": "a", "old/b.py": "b", "start.sh": "x"})
    (tmp_path / "training/old/b.py").write_text("mine")
    done = publish({"train.py": "2", "start.sh": "x"})
    assert (done.written, done.removed, done.kept) == (1, 1, ())
    assert installed(tmp_path) == {"old/b.py": "mine", "start.sh": "x", "train.py": "2"}
    publish(None)
    assert installed(tmp_path) == {"old/b.py": "mine"}


def test_what_a_person_put_there_stays(publish: Publish, tmp_path: Path) -> None:
    top = tmp_path / "training"
    top.mkdir()
    (top / "notes.txt").write_text("mine")
    (top / "train.py").write_text("manually")
    assert publish({"train.py": "1"}).kept == ("train.py.kept",)
    (top / "train.py").write_text("manually again")
    done = publish({"train.py": "2"})
    assert "files changed on this host are kept beside: train.py.kept-2" in str(done)
    assert installed(tmp_path) == {
        "notes.txt": "mine",
        "train.py": "2",
        "train.py.kept": "manually",
        "train.py.kept-2": "manually again",
    }


def test_a_link_of_a_persons_is_kept_as_one_and_not_written_through(publish: Publish, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / "training/train.py").symlink_to("../elsewhere")
    publish({"train.py": "1"})
    assert (tmp_path / "elsewhere").read_text() == "theirs"
    assert (tmp_path / "training/train.py.kept").is_symlink()
    assert not (tmp_path / "training/train.py").is_symlink()


def test_a_mode_alone_is_a_change(publish: Publish, tmp_path: Path) -> None:
    publish({"start.sh": "#!"})
    (tmp_path / "training/start.sh").chmod(0o644)
    publish({"start.sh": "#!"})
    assert (tmp_path / "training/start.sh").stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("mine", ["file", "link", "folder"])
def test_what_stands_in_the_way_is_named_and_stays(publish: Publish, tmp_path: Path, mine: str) -> None:
    top = tmp_path / "training"
    top.mkdir()
    if mine == "file":
        (top / "pkg").write_text("mine")
    elif mine == "link":
        (tmp_path / "mine").mkdir()
        (top / "pkg").symlink_to(tmp_path / "mine")
    else:
        (top / "pkg" / "a.py").mkdir(parents=True)
    with pytest.raises(CodeError, match=r"training/pkg(/a.py)?: the published code has a f"):
        publish({"pkg/a.py": "1"})
    assert (top / "pkg").exists()
    assert not list((tmp_path / "mine").glob("*")) if mine == "link" else True


class KilledError(Exception):
    pass


@given(st.integers(0, 12))
def test_killed_anywhere_it_ends_alike_at_the_next_boot(
    tmp_path_factory: pytest.TempPathFactory, calls: int
) -> None:
    """Between any two changes of the disk."""
    folder = tmp_path_factory.mktemp("code")
    publish = make(folder)
    publish({"a": "1", "b/c": "1", "gone": "1"})
    (folder / "training/a").write_text("manually")
    left = calls

    def counted(method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return method(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "rename", "unlink", "write_bytes", "write_text", "mkdir"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        with contextlib.suppress(KilledError):
            publish({"a": "2", "b/c": "2", "new": "2"})
    publish({"a": "2", "b/c": "2", "new": "2"})
    assert installed(folder) == {"a": "2", "a.kept": "manually", "b/c": "2", "new": "2"}


def test_the_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top = tmp_path / "training"
    top.write_text("a file")
    command = ["code", "--archive", str(tmp_path / "none"), "--into", str(top)]
    command += ["--record", str(tmp_path / "record.json")]
    assert main(command) == 1
    assert capsys.readouterr().err.startswith(f"workload host code: {top}: ")
    top.unlink()
    assert main(command) == 0
    assert capsys.readouterr().out == "0 files, 0 of them new\n"
    assert json.loads((tmp_path / "record.json").read_text()) == {}
