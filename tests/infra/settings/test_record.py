"""Writes of commands into an environment's file: one line, every other byte as it was."""

import errno
import os
from pathlib import Path

import pytest

from infra.errors import InfraError
from infra.settings.record import record

BEFORE = """\
# Development: one small slice.
config:
  # Keep in step with the quota.
  storage:bucketName: b   # outlives everything
  tpu:slices:
    - {name: dev}
"""
PLACES = {"tpu-us-east5-b-0": "us-east5-a"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "Pulumi.dev.yaml"
    result.write_text(BEFORE)
    return result


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("ab" * 32, f"tpu:x: {'ab' * 32}"),
        ("1" * 64, f'tpu:x: "{"1" * 64}"'),  # to YAML a number, unless it is quoted
        (PLACES, 'tpu:x: {"tpu-us-east5-b-0": "us-east5-a"}'),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_setting_is_one_line_that_comes_changes_and_goes(
    path: Path, value: str | dict[str, str], line: str, ends: str
) -> None:
    def stands(wanted: str) -> bool:
        return path.read_bytes() == wanted.replace("\n", ends).encode()

    path.write_bytes(BEFORE.replace("\n", ends).encode())
    assert record("dev", "tpu:x", value, path.parent)
    assert stands(BEFORE.replace("  # Keep", f"  {line}\n  # Keep"))
    assert not record("dev", "tpu:x", value, path.parent)
    assert record("dev", "tpu:x", "other", path.parent)
    assert stands(BEFORE.replace("  # Keep", "  tpu:x: other\n  # Keep"))
    assert record("dev", "tpu:x", {}, path.parent)
    assert stands(BEFORE)
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_last_line_without_an_end_stays_without_one(path: Path) -> None:
    path.write_bytes(BEFORE.encode() + b"  tpu:x: old")
    assert record("dev", "tpu:x", "new", path.parent)
    assert path.read_bytes() == BEFORE.encode() + b"  tpu:x: new"


def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(InfraError, match="can't be written: No space left on device: tpu:x: new"):
        record("dev", "tpu:x", "new", path.parent)
    assert path.read_text() == BEFORE
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "before",
    ["encryptionsalt: x\n", "config: {storage:bucketName: b}\n", "config:\n  tpu:x:\n    a: b\n  tpu:y: c\n"],
)
def test_a_file_that_is_written_otherwise_is_left_alone(path: Path, before: str) -> None:
    path.write_text(before)
    with pytest.raises(InfraError, match=r"under config: '  tpu:x: \{\"tpu-us-east5-b-0\""):
        record("dev", "tpu:x", PLACES, path.parent)
    assert path.read_text() == before
