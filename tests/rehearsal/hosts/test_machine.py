"""Machines, really booted, inside of namespaces that the test makes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.hosts.bootdisk import SIZE_GIB
from rehearsal.hosts.groups import own_groups
from rehearsal.hosts.image import ensure_image
from rehearsal.world.layout import cache_dir
from tests.limits import HANG_S, until

pytestmark = pytest.mark.root

_NAMESPACES = (
    *("unshare", "--mount", "--propagation", "private", "--net", "--uts", "--ipc"),
    *("--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
)
_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def image() -> Path:
    return ensure_image(cache_dir())


@contextlib.contextmanager
def groups_of_a_run() -> Iterator[list[Path]]:
    """Control groups for one run's processes alone, so that remains of machines are found."""
    folders = [parent / f"test-{os.getpid()}" for parent in own_groups()]
    for folder in folders:
        folder.mkdir()
    yield folders
    for folder in folders:
        for below in sorted(folder.rglob("*/"), reverse=True):
            below.rmdir()
        folder.rmdir()


def _start(groups: list[Path], *arguments: str | Path) -> subprocess.Popen[str]:
    enter = "".join(f'echo 0 > "{group}/cgroup.procs" && ' for group in groups)
    inside = [sys.executable, _ROOT / "tests/rehearsal/hosts/inside.py", *arguments]
    return subprocess.Popen(
        ["/bin/sh", "-c", f'{enter}exec "$@"', "sh", *_NAMESPACES, *inside],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def seen(image: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Observations of the scenario; see inside.py."""
    with groups_of_a_run() as groups:
        process = _start(groups, tmp_path_factory.mktemp("scenario"), image, "scenario")
        output, _ = process.communicate(timeout=HANG_S)
        left = [str(path) for group in groups for path in group.rglob("*/")]
    assert process.returncode == 0
    facts: dict[str, Any] = json.loads(output)
    return facts | {"groups left": left}


def test_each_machine_has_its_own_name_address_and_network(seen: dict[str, Any]) -> None:
    assert (seen["hostname 0"], seen["hostname 1"]) == ("tpu-dev-w0", "tpu-dev-w1")
    assert seen["mac"] == "42:01:0a:80:00:02"
    assert (seen["mtu"], seen["full-size packet"]) == ("8896", "1")


def test_systemd_is_content_with_every_unit_although_the_script_failed(seen: dict[str, Any]) -> None:
    assert seen["state"] == "running"


def test_startup_script_runs_and_its_output_is_in_the_journal(seen: dict[str, Any]) -> None:
    assert "startup-script: hello from tpu-dev-w1" in seen["console"]
    assert "startup-script exit status 3" in seen["console"]


def test_engineer_may_become_root(seen: dict[str, Any]) -> None:
    assert seen["sudo"] == "0"


def test_fuse_can_be_used(seen: dict[str, Any]) -> None:
    assert seen["fuse"] == "open"


def test_data_disk_is_shared_and_cannot_be_written(seen: dict[str, Any]) -> None:
    assert seen["read"] == seen["other reader"] == "real data"
    assert len(seen["loops"]) == 1
    assert "Read-only file system" in seen["write to file"]
    assert "Operation not permitted" in seen["write to device"]


def test_boot_disk_lasts_over_reboots_and_power_offs_but_not_longer(seen: dict[str, Any]) -> None:
    assert seen["running after reboot"]
    assert seen["kept by reboot"] == seen["kept by power-off"] == "/var/lib/mine"
    assert "No such file" in seen["kept by discard"]


def test_boot_disk_has_a_size_and_a_full_one_takes_no_room_here_and_boots(seen: dict[str, Any]) -> None:
    assert seen["size"].strip() == str(SIZE_GIB)
    assert seen["filled"].count("No space left on device") == 2
    assert "No space left on device" in seen["still full"]
    assert seen["booted full"] == "tpu-dev-w1"
    assert seen["room taken"] < 100_000_000


def test_power_off_is_orderly(seen: dict[str, Any]) -> None:
    assert seen["orderly"]
    assert not seen["running after power-off"]


def test_pulling_one_plug_ends_that_machine_alone(seen: dict[str, Any]) -> None:
    assert not seen["running after pull"]
    assert seen["other still runs"]


def test_a_machine_that_goes_takes_no_gateway_from_the_others(seen: dict[str, Any]) -> None:
    assert seen["gateway is the same"]
    assert seen["gateway is still the same"]


@pytest.mark.parametrize("what", ["mounts", "loops", "files", "processes", "groups"])
def test_close_leaves_nothing(seen: dict[str, Any], what: str) -> None:
    assert seen[f"{what} left"] == []


def test_close_takes_the_bridge_down(seen: dict[str, Any]) -> None:
    assert "tpu0" not in seen["links left"]


@pytest.mark.prove
def test_a_crash_leaves_no_process_and_no_loop_device(image: Path, tmp_path: Path) -> None:
    with groups_of_a_run() as groups:
        process = _start(groups, tmp_path, image, "hang")
        assert process.stdout is not None
        devices = process.stdout.readline().split()  # of the data disk and of the boot disk
        assert [_attached(device) for device in devices] == [True, True]
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not (_members(groups) or any(map(_attached, devices))))


def _members(groups: list[Path]) -> list[str]:
    files = [file for group in groups for file in group.rglob("cgroup.procs")]
    return [pid for file in files for pid in file.read_text().split()]


def _attached(device: str) -> bool:
    return Path(f"/sys/block/{Path(device).name}/loop/backing_file").exists()
