"""A bucket mounted twice by gcsfuse: what /mnt/checkpoints is to the people who look into it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from storage_front import OWNER, Front

from tests.limits import HANG_S

pytestmark = pytest.mark.root


@contextmanager
def mounted(front: Front, bucket: str, where: Path) -> Iterator[Path]:
    where.mkdir()
    command = [
        "gcsfuse",
        f"--custom-endpoint={front.url}/storage/v1/",
        "--anonymous-access",
        "--enable-hns=false",
        "--implicit-dirs",
        "--metadata-cache-ttl-secs=0",
        "--kernel-list-cache-ttl-secs=0",
        "--rename-dir-limit=100000",
        f"--log-file={where}.log",
        bucket,
        str(where),
    ]
    started = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert started.returncode == 0, started.stderr + Path(f"{where}.log").read_text()
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True, timeout=HANG_S)


@pytest.fixture
def mounts(front: Front, new_bucket: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Path, Path, str]]:
    bucket = new_bucket(versioning={"enabled": True})
    front.grant(f"projects/_/buckets/{bucket}", "roles/storage.objectUser", f"user:{OWNER}")
    with ExitStack() as stack:
        first = stack.enter_context(mounted(front, bucket, tmp_path / "first"))
        second = stack.enter_context(mounted(front, bucket, tmp_path / "second"))
        yield first, second, bucket


def test_two_mounts_see_the_same_files(front: Front, mounts: tuple[Path, Path, str]) -> None:
    first, second, bucket = mounts
    content = os.urandom(5_000_000)
    (first / "runs").mkdir()
    (first / "runs" / "data").write_bytes(content)
    assert (second / "runs" / "data").read_bytes() == content
    assert front.read(bucket, "runs/data").body == content

    (first / "log").write_text("one\n")
    with (first / "log").open("a") as log:
        log.write("two\n")
    assert (second / "log").read_text() == "one\ntwo\n"

    (second / "log").rename(second / "log.1")
    assert sorted(entry.name for entry in first.iterdir()) == ["log.1", "runs"]
    (second / "runs").rename(second / "old")
    assert (first / "old" / "data").read_bytes() == content
    assert not (first / "runs").exists()

    listing = subprocess.run(["ls", "-la", str(first)], capture_output=True, text=True, check=True).stdout
    assert "log.1" in listing
    assert "old" in listing

    (first / "log.1").unlink()
    assert [entry.name for entry in second.iterdir()] == ["old"]
    front.put(bucket, "from/the/api", b"x")
    assert (first / "from" / "the" / "api").read_bytes() == b"x"

    with (first / "old" / "data").open("r+b") as data:
        data.seek(10)
        data.write(b"changed")
    assert (second / "old" / "data").read_bytes() == content[:10] + b"changed" + content[17:]


def test_a_file_removed_under_a_reader_stays_readable_to_the_end(mounts: tuple[Path, Path, str]) -> None:
    first, second, _ = mounts
    (first / "a").write_bytes(b"0123456789" * 100_000)
    with (second / "a").open("rb") as reader:
        assert reader.read(10) == b"0123456789"
    (first / "a").unlink()
    assert not (second / "a").exists()
