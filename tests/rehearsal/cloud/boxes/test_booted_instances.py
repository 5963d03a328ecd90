"""Compute Engine's instances, really booted, and files that one serves to another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rehearsal.hosts.image import ensure_image
from rehearsal.world.layout import cache_dir
from tests.limits import HANG_S

pytestmark = pytest.mark.root

_NAMESPACES = (
    *("unshare", "--mount", "--propagation", "private", "--net", "--uts", "--ipc"),
    *("--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
)
_ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Observations of the scenario; see instances_inside.py."""
    image, folder = ensure_image(cache_dir()), tmp_path_factory.mktemp("instances")
    inside = [sys.executable, _ROOT / "tests/rehearsal/cloud/boxes/instances_inside.py", folder, image]
    done = subprocess.run(
        [*_NAMESPACES, *inside],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_the_start_up_script_runs_as_the_instances_account_with_the_roles_that_it_has(
    seen: dict[str, Any],
) -> None:
    lines = dict(line.split(" ", 1) for line in seen["by the script"].splitlines())
    assert {key: lines[key] for key in ("secret", "other", "object", "nodes")} == {
        "secret": "200",
        "other": "403",
        "object": "200",
        "nodes": "403",
    }
    assert json.loads(seen["secret"])["payload"]["data"] == "a2V5"
    assert json.loads(seen["object"]) == "a program"


def test_the_metadata_server_knows_the_instance(seen: dict[str, Any]) -> None:
    lines = dict(line.split(" ", 1) for line in seen["by the script"].splitlines())
    assert lines["name"] == "controller"
    assert int(lines["id"]) > 0
    assert lines["zone"].endswith("/zones/us-east5-b")
    assert lines["machine-type"].endswith("/machineTypes/n2-standard-4")
    assert lines["service-accounts/default/scopes"] == "https://www.googleapis.com/auth/cloud-platform"
    assert seen["guest attributes"] == [{"namespace": "slurm", "key": "state", "value": "ready"}]


def test_changed_metadata_are_told_to_who_waits(seen: dict[str, Any]) -> None:
    assert seen["told"] == "changed"


def test_an_attached_disk_outlives_its_instance_and_goes_when_it_is_deleted(seen: dict[str, Any]) -> None:
    assert seen["kept by deletion"] == "5"  # boots; of the boot disk's files none
    assert seen["images left"] == []


def test_a_loss_of_power_is_repaired_and_the_disk_kept(seen: dict[str, Any]) -> None:
    assert seen["after the pull"] == "REPAIRING"
    assert seen["boots after the pull"] == "2"


def test_stop_start_and_reset_keep_the_boot_disk(seen: dict[str, Any]) -> None:
    assert seen["status"] == "RUNNING"
    assert seen["stopped"] == ["TERMINATED", False]
    assert seen["kept by stop"] == "/srv/shared/file\n3"
    assert seen["boots after reset"] == "4"


def test_a_protected_instance_is_not_deleted(seen: dict[str, Any]) -> None:
    assert (seen["protected"], seen["deleted"]) == (400, 404)


def test_files_are_served_to_whom_the_firewall_and_the_exports_let(seen: dict[str, Any]) -> None:
    assert "mount.nfs: Connection timed out" in seen["mount before the rule"]
    assert ["10.128.0.2", "10.128.0.5", 2049] in seen["dropped"]
    assert seen["mount"].endswith("/shared is a mountpoint")
    assert "access denied by server" in seen["mount of another path"]
    assert "Permission denied" in seen["read only"]


def test_what_one_machine_writes_another_reads_at_once(seen: dict[str, Any]) -> None:
    assert seen["written by one"] == "done"
    assert seen["read by another"] == seen["read back"] == "first\nsecond"
    assert seen["copy"] == "same"


def test_a_mount_goes_on_after_its_server_was_gone(seen: dict[str, Any]) -> None:
    assert seen["mounted again"] == "first\nsecond"


def test_the_second_login_has_no_right_to_sudo(seen: dict[str, Any]) -> None:
    assert "password is required" in seen["sudo of the second"]


def test_the_emulation_itself_is_not_at_fault(seen: dict[str, Any]) -> None:
    assert seen["mistakes"] == []
