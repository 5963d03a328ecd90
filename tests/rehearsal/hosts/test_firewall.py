"""Traffic between machines under the firewalls of the emulated cloud."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from rehearsal.world import dial
from tests.rehearsal.hosts.wire import Wire

pytestmark = pytest.mark.root

ALL = [{"IPProtocol": "all"}]
SSH = {"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "sourceRanges": ["35.235.240.0/20"]}
SLICE = {
    "allowed": [{"IPProtocol": "tcp", "ports": ["8470-8475", "8476"]}],
    "sourceTags": ["tpu-slice"],
    "targetTags": ["tpu-slice"],
}
OPEN = {"allowed": ALL, "sourceRanges": ["0.0.0.0/0"]}
DENY = {"denied": [{"IPProtocol": "tcp", "ports": ["8476"]}], "sourceRanges": ["10.128.0.0/20"]}
OUT = {"direction": "EGRESS", "destinationRanges": ["0.0.0.0/0"]}


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with closing(Wire()) as wire:
        wire.add("w0", "10.128.0.2", "ours", "trainer@p", "tpu-slice")
        wire.add("w1", "10.128.0.3", "ours", "trainer@p", "tpu-slice", "other")
        wire.add("plain", "10.128.0.4", "ours", "plain@p")
        wire.add("foreign", "10.200.0.2", "theirs", "trainer@p", "tpu-slice")
        yield wire


@pytest.mark.parametrize(
    ("firewalls", "flow", "passes"),
    [
        ((), ("w0", "w1", 8476), False),
        ((), ("w0", "front door", 443), True),
        ((), ("iap", "w0", 22), False),
        ((SLICE,), ("w0", "w1", 8476), True),
        ((SLICE,), ("w0", "w1", 8473), True),
        ((SLICE,), ("w0", "w1", 8477), False),
        ((SLICE,), ("plain", "w1", 8476), False),
        ((SLICE,), ("w0", "plain", 8476), False),
        ((SLICE | {"targetTags": ["nobody"]},), ("w0", "w1", 8476), False),
        ((SLICE | {"sourceTags": ["nobody"]},), ("w0", "w1", 8476), False),
        ((SLICE | {"disabled": True},), ("w0", "w1", 8476), False),
        ((SLICE | {"sourceRanges": ["10.128.0.4/32"]},), ("plain", "w1", 8476), True),
        ((SLICE | {"allowed": [{"IPProtocol": "udp"}]},), ("w0", "w1", 8476), False),
        ((SSH,), ("iap", "w0", 22), True),
        ((SSH,), ("gateway", "w0", 22), False),
        ((SSH,), ("w1", "w0", 22), False),
        ((OPEN,), ("w0", "plain", 9999), True),
        ((OPEN | {"network": "/projects/p/global/networks/theirs"},), ("w0", "plain", 9999), False),
        ((OPEN,), ("w0", "foreign", 9999), False),
        ((OPEN | {"allowed": [{"IPProtocol": "6"}, {"IPProtocol": "esp"}]},), ("w0", "plain", 9), True),
        ((OPEN,), ("foreign", "w0", 9999), False),
        ((OPEN | {"destinationRanges": ["10.128.0.4/32"]},), ("w1", "w0", 9999), False),
        ((SLICE, DENY), ("w0", "w1", 8476), False),
        ((SLICE | {"priority": 999}, DENY), ("w0", "w1", 8476), True),
        ((SLICE, DENY | {"priority": 1001}), ("w0", "w1", 8476), True),
        ((SLICE, DENY | {"targetTags": ["other"]}), ("w0", "w1", 8476), False),
        ((SLICE, DENY | {"targetTags": ["other"]}), ("w1", "w0", 8476), True),
        (({"allowed": ALL, "sourceServiceAccounts": ["trainer@p"]},), ("w0", "plain", 1), True),
        (({"allowed": ALL, "sourceServiceAccounts": ["trainer@p"]},), ("plain", "w0", 1), False),
        ((OPEN | {"targetServiceAccounts": ["plain@p"]},), ("w0", "w1", 1), False),
        ((OPEN, OUT | {"denied": ALL}), ("w0", "w1", 1), False),
        ((OPEN, OUT | {"denied": ALL}), ("w0", "front door", 443), False),
        ((OPEN, OUT | {"denied": ALL}), ("w0", "metadata", 80), True),
        ((OPEN, OUT | {"denied": ALL}), ("iap", "w0", 22), True),
        ((OPEN, OUT | {"denied": ALL, "targetTags": ["other"]}), ("w0", "front door", 443), True),
        ((OUT | {"allowed": ALL},), ("w0", "w1", 1), False),
    ],
)
def test_a_flow(wire: Wire, firewalls: tuple[Any, ...], flow: tuple[str, str, int], passes: bool) -> None:
    wire.enforce(*firewalls)
    assert wire.passes(*flow) is passes


def test_a_tag_that_comes_and_goes_changes_what_passes(wire: Wire) -> None:
    for tags, passes in ((["tpu-slice"], True), ([], False)):
        wire.members["plain"] = replace(wire.members["plain"], tags=frozenset(tags))
        wire.enforce(SLICE)
        assert wire.passes("plain", "w1", 8476) is passes


def test_no_machine_sends_a_frame_past_the_gateway(wire: Wire) -> None:
    wire.enforce(OPEN)
    show = ["bridge", "-details", "link", "show"]
    shown = wire(subprocess.run, show, capture_output=True, text=True).stdout
    assert shown.count("isolated on") == len(wire.members)


def test_people_dial_from_the_range_of_identity_aware_proxy(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = {"name": "w0", "address": "10.128.0.2", "running": True}
    monkeypatch.setattr(dial.Control, "status", lambda _: {"nodes": [{"hosts": [host]}], "instances": []})
    monkeypatch.setattr(dial.Control, "login", lambda *_: None)
    monkeypatch.setattr(dial, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr("sys.argv", ["dial", "w0", "22"])
    monkeypatch.setenv("REHEARSAL_CONTROL", "")
    monkeypatch.setenv("CLOUDSDK_CORE_ACCOUNT", "ada@example.com")
    ssh, standard_output = socket.socketpair()
    monkeypatch.setattr("sys.stdout", standard_output)
    with ssh, standard_output, wire.machines["w0"](socket.create_server, ("10.128.0.2", 22)):
        wire.enforce(SSH)
        assert wire(dial.main) == 0
        _, (descriptor,), _, _ = socket.recv_fds(ssh, 1, 1)
        with socket.socket(fileno=descriptor) as handed_over:
            assert handed_over.getpeername() == ("10.128.0.2", 22)
            assert handed_over.getsockname()[0].startswith("35.235.240.")
        wire.enforce()
        assert wire(dial.main) == 1
        assert "4003: 'failed to connect to backend'" in capsys.readouterr().err
