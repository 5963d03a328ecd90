"""Boots that go wrong before there is an init, on a computer where nothing is mounted for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rehearsal.hosts import machine
from rehearsal.hosts.bootdisk import Access
from rehearsal.hosts.errors import HostError
from rehearsal.hosts.machine import NspawnHosts
from rehearsal.hosts.network import Network
from rehearsal.hosts.spec import AttachedDisk, HostSpec
from tests.limits import HANG_S

NOWHERE = Path("/nonexistent")
SPEC = HostSpec("tpu-dev-w0", "tpu-dev", 0, "10.0.0.2/20", "10.0.0.1", 8896)


class Pretended:
    """A boot disk and a control group that cost nothing."""

    root = NOWHERE

    def __init__(self, *_: object) -> None:
        pass

    def open(self) -> None: ...

    def close(self) -> None: ...

    def furnish(self, *_: object) -> None: ...

    def enter(self) -> list[str]:
        return []


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NspawnHosts:
    monkeypatch.setattr(machine, "BootDisk", Pretended)
    monkeypatch.setattr(machine, "ControlGroup", Pretended)
    monkeypatch.setattr(Network, "ensure_gateway", lambda *_: None)
    access = Access(NOWHERE, NOWHERE, NOWHERE, NOWHERE)
    return NspawnHosts(tmp_path, NOWHERE, access, Network(()))


def commanded(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    monkeypatch.setattr(machine, "nspawn_command", lambda *_: list(command))


async def test_nspawn_that_hangs_is_given_up_and_killed(
    hosts: NspawnHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    commanded(monkeypatch, "sleep", "60")
    monkeypatch.setattr(machine, "BOOT_TIMEOUT_S", 0.5)
    with pytest.raises(HostError, match=r"tpu-dev-w0: no init within"):
        await asyncio.wait_for(hosts.boot(SPEC), HANG_S)
    assert not hosts.running("tpu-dev-w0")


async def test_the_output_of_nspawn_is_in_the_error(
    hosts: NspawnHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    commanded(monkeypatch, "sh", "-c", "echo no such image; exit 4")
    with pytest.raises(HostError, match=r"ended with status 4\): no such image"):
        await asyncio.wait_for(hosts.boot(SPEC), HANG_S)


async def test_any_failure_before_the_boot_is_raised_at_once(
    hosts: NspawnHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Path:
        raise PermissionError(1, "Operation not permitted", "/dev/loop-control")

    monkeypatch.setattr(machine.LoopDevices, "attach", refused)
    spec = HostSpec(**{**vars(SPEC), "disks": (AttachedDisk(NOWHERE, "persistent-disk-1", True),)})
    with pytest.raises(HostError, match=r"Operation not permitted: '/dev/loop-control'"):
        await asyncio.wait_for(hosts.boot(spec), HANG_S)
    assert not hosts.running("tpu-dev-w0")
