"""Disk images and the loop devices over them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rehearsal.hosts.disks import LoopDevices, image_from_folder
from rehearsal.hosts.errors import HostError


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "content"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "tokens").write_bytes(os.urandom(3_000_000))
    for number in range(200):
        (folder / f"small-{number}").write_text(str(number))
    image_from_folder(folder, tmp_path / "disk.img", label="corpus")
    return tmp_path / "disk.img"


def test_image_holds_the_folder(image: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    subprocess.run(["debugfs", "-R", f"dump /deep/tokens {out}", image], check=True, capture_output=True)
    assert out.read_bytes() == (tmp_path / "content/deep/tokens").read_bytes()
    label = subprocess.run(["e2label", image], capture_output=True, text=True, check=True)
    assert label.stdout.strip() == "corpus"


def test_image_is_a_clean_file_system(image: Path) -> None:
    assert subprocess.run(["e2fsck", "-fn", image], capture_output=True).returncode == 0


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"gone\.img: No such file"):
        LoopDevices().attach(tmp_path / "gone.img", read_only=True)


@pytest.mark.root
def test_readers_share_one_device_which_goes_with_the_last(image: Path) -> None:
    loops = LoopDevices()
    device = loops.attach(image, read_only=True)
    assert loops.attach(image, read_only=True) == device
    assert _backing(device) == str(image)
    loops.release(image)
    assert _backing(device) == str(image)
    loops.release(image)
    assert _backing(device) != str(image)


@pytest.mark.root
def test_read_only_device_cannot_be_written_by_root_either(image: Path) -> None:
    loops = LoopDevices()
    device = loops.attach(image, read_only=True)
    try:
        with open(device, "r+b", buffering=0) as opened, pytest.raises(PermissionError):
            opened.write(bytes(4096))
    finally:
        loops.release(image)


@pytest.mark.root
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_a_writer_shares_with_nobody(image: Path, first: bool, second: bool) -> None:
    loops = LoopDevices()
    loops.attach(image, read_only=first)
    try:
        with pytest.raises(HostError, match="a writer can't share it"):
            loops.attach(image, read_only=second)
    finally:
        loops.release(image)


def _backing(device: Path) -> str:
    try:
        return Path(f"/sys/block/{device.name}/loop/backing_file").read_text().strip()
    except FileNotFoundError:
        return ""
