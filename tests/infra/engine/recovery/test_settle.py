"""Recovery of states with pending operations: ids of all types, locks, and the settings' file."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from infra.engine.recovery.ids import find_id, forms, google_id, lookup
from infra.engine.recovery.interrupted import MARK, REPEATED, interrupted, mark_of, mark_pending, marked
from infra.engine.recovery.locks import Lock
from infra.engine.recovery.settle import Patience
from infra.engine.registry import layers
from infra.errors import CommandError
from infra.settings.record import formatting_kept
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.types import TYPES
from tests.infra.conftest import FakePulumi
from tests.infra.declared import LAYERS, declared
from tests.infra.recording import BASE
from tests.limits import HANG_S

STACK = "urn:pulumi:dev::network::"
NETWORK, SUBNET = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
PROVIDER = f"{STACK}pulumi:providers:gcp::gcp"


def record(kind: str, name: str, **more: Any) -> dict[str, Any]:
    inputs = {"name": name, "region": "us-east5"}
    return {
        "urn": f"{STACK}{kind}::{name}", "custom": True, "type": kind, "inputs": inputs,
        "provider": f"{PROVIDER}::7", **more,
    }  # fmt: skip


def state(
    *pending: tuple[str, dict[str, Any]], resources: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    provider = {"urn": PROVIDER, "custom": True, "type": "pulumi:providers:gcp", "id": "7"}
    return {
        "manifest": {"time": "2026-11-22T14:37:04.258045012Z"},
        "resources": [{**provider, "inputs": {"project": "p"}}, *(resources or [])],
        "pending_operations": [{"type": doing, "resource": item} for doing, item in pending],
    }


def test_every_type_that_the_program_declares_has_an_id() -> None:
    types = {resource.type for layer in LAYERS for resource in declared(layer).resources}
    chosen = {kind for layer in layers() for kind in layer.hooks.lookups}
    repeated = {item for item in REPEATED if item.startswith("gcp:")}
    assert {kind for kind in types if kind.startswith("gcp:")} == set(forms()) | chosen | repeated
    assert not set(forms()) & (chosen | repeated)


def test_the_provider_takes_each_id_for_what_the_inputs_say() -> None:
    """The stand-in's parsing of ids is that of the official provider's imports, as far as it was recorded."""
    for layer in LAYERS:
        for resource in declared(layer).resources:
            if not resource.type.startswith("gcp:") or resource.type in REPEATED:
                continue
            id_ = google_id(resource.type, resource.inputs, "my-project")
            if lookup(resource.type):
                assert id_ is None, "Google chooses it"
                continue
            assert id_, resource
            if "Member" in resource.type:
                title = [resource.inputs["condition"]["title"]] if "condition" in resource.inputs else []
                assert id_.split(maxsplit=3)[1:] == [
                    resource.inputs["role"],
                    resource.inputs["member"],
                    *title,
                ]
                continue
            output = TYPES[resource.type].parse(id_, Settings(project="my-project"))
            assert output, resource.type
            for key, value in output.items():
                if key not in ("project", "email"):
                    assert value == resource.inputs[key], (resource.type, key)


def test_an_object_of_a_cluster_is_called_by_its_namespace_and_name() -> None:
    objects = [
        resource for resource in declared("queue").resources if resource.type.startswith("kubernetes:")
    ]
    result = {google_id(item.type, item.inputs, "p") for item in objects}
    assert {"vision", "vision/checkpoints", "tpu", "kueue-system/kueue-controller-manager"} <= result
    assert None not in result


def test_a_pending_creation_becomes_a_resource_to_be_looked_at() -> None:
    deployment = state(("creating", record(NETWORK, "net")))
    assert interrupted(deployment) == [f"{MARK} creating Network net"]
    mark_pending(deployment, "p")
    (item,) = marked(deployment)
    assert item["id"] == "projects/p/global/networks/net"
    doing, at = mark_of(item)
    assert (doing, int(at)) == ("creating", int(datetime(2026, 11, 22, 14, 37, 4, tzinfo=UTC).timestamp()))
    assert deployment["pending_operations"] == []
    assert interrupted(deployment) == [f"{MARK} creating Network net"], "until it was looked at"
    mark_pending(deployment, "p")
    assert marked(deployment) == [item]


POLICY, DASHBOARD = "gcp:monitoring/alertPolicy:AlertPolicy", "gcp:monitoring/dashboard:Dashboard"


def test_a_pending_creation_whose_id_google_chooses_is_found_or_dropped() -> None:
    anies: list[Any] = []

    def find(kind: str, inputs: Mapping[str, Any], project: str, known: Collection[str]) -> str | None:
        anies.append((kind, inputs["displayName"], project))
        return "projects/p/alertPolicies/7" if inputs["displayName"] == "there" else None

    for name, ids in (("there", ["projects/p/alertPolicies/7"]), ("nowhere", [])):
        pending = {**record(POLICY, name), "inputs": {"displayName": name}}
        deployment = state(("creating", pending))
        mark_pending(deployment, "p", find)
        assert [item["id"] for item in marked(deployment)] == ids
        assert deployment["pending_operations"] == []
    assert anies == [(POLICY, "there", "p"), (POLICY, "nowhere", "p")]


class Listed:
    """A client whose lists hold these."""

    def __init__(self, **items: list[dict[str, str]]) -> None:
        self.held, self.urls = items, list[str]()

    def items(self, url: str, key: str, query: object) -> list[dict[str, str]]:
        self.urls.append(url)
        return self.held[key]


def test_what_google_named_is_found_by_its_display_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_MONITORING_CUSTOM_ENDPOINT", raising=False)
    boards = [{"name": f"projects/p/dashboards/{n}", "displayName": f"TPU {n}"} for n in "ab"]
    client: Any = Listed(dashboards=[*boards, {"name": "projects/p/dashboards/c", "displayName": "TPU b"}])
    a, b = ({"dashboardJson": json.dumps({"displayName": f"TPU {name}"})} for name in "ab")
    assert find_id(DASHBOARD, a, "p", (), client) == "projects/p/dashboards/a"
    assert find_id(DASHBOARD, a, "p", {"projects/p/dashboards/a"}, client) is None, "that is another's"
    assert client.urls[0] == "https://monitoring.googleapis.com/v1/projects/p/dashboards"
    with pytest.raises(CommandError, match=r"2 called 'TPU b'.*\n    fix: delete all but one"):
        find_id(DASHBOARD, b, "p", (), client)


def test_what_is_deleted_and_updated_stays_and_is_looked_at() -> None:
    existing = [
        record(NETWORK, "net", id="a"),
        record(SUBNET, "sub", id="b"),
        record(SUBNET, "other", id="c"),
    ]
    deployment = state(("deleting", existing[0]), ("updating", existing[1]), resources=existing)
    mark_pending(deployment, "p")
    assert [(item["id"], mark_of(item)[0]) for item in marked(deployment)] == [
        ("a", "deleting"),
        ("b", "updating"),
    ]


def test_components_providers_and_readings_are_nothing_to_settle() -> None:
    component = {"urn": f"{STACK}tpu:network:Firewall::f", "custom": False, "type": "tpu:network:Firewall"}
    provider = {"urn": PROVIDER, "custom": True, "type": "pulumi:providers:gcp", "inputs": {}}
    read = record(NETWORK, "existing", id="x")
    deployment = state(("creating", component), ("creating", provider), ("reading", read))
    assert interrupted(deployment) == []
    mark_pending(deployment, "p")
    assert (len(deployment["resources"]), marked(deployment)) == (1, [])


def test_creations_of_several_kills_come_in_their_order_and_once() -> None:
    net, sub = record(NETWORK, "net"), record(SUBNET, "sub", dependencies=[record(NETWORK, "net")["urn"]])
    deployment = state(("creating", sub), ("creating", net), ("creating", dict(net)))
    mark_pending(deployment, "p")
    assert [resource["urn"] for resource in deployment["resources"][1:]] == [net["urn"], sub["urn"]]


def test_what_a_later_update_has_made_is_left_alone() -> None:
    made = record(NETWORK, "net", id="projects/p/global/networks/net", outputs={"mtu": 8896})
    deployment = state(("creating", record(NETWORK, "net")), resources=[made])
    mark_pending(deployment, "p")
    assert deployment["resources"][1:] == [made]


def test_a_grant_whose_id_the_state_writes_otherwise_is_the_same_one() -> None:
    inputs = {"project": "p", "role": "roles/r", "member": "user:a"}
    kind = "gcp:projects/iAMMember:IAMMember"
    grant = {**record(kind, "g"), "inputs": inputs}
    deployment = state(("creating", grant), resources=[{**grant, "id": "p/roles/r/user:a"}])
    mark_pending(deployment, "p")
    assert deployment["resources"][1:] == [{**grant, "id": "p/roles/r/user:a"}], "not to be revoked"


def test_a_replacement_takes_the_place_and_the_old_one_is_deleted_later() -> None:
    old = record(NETWORK, "net", id="projects/p/global/networks/old", inputs={"name": "old"})
    deployment = state(("creating", record(NETWORK, "net")), resources=[old, record(SUBNET, "sub", id="b")])
    mark_pending(deployment, "p")
    assert [(resource.get("id"), resource.get("delete")) for resource in deployment["resources"][1:]] == [
        ("projects/p/global/networks/net", None),
        ("b", None),
        ("projects/p/global/networks/old", True),
    ]


def test_of_a_node_that_was_deleted_for_its_replacement_only_the_new_one_stays() -> None:
    same = {"id": "projects/p/global/networks/net", "pendingReplacement": True}
    deployment = state(("creating", record(NETWORK, "net")), resources=[record(NETWORK, "net", **same)])
    mark_pending(deployment, "p")
    (item,) = deployment["resources"][1:]
    assert "pendingReplacement" not in item


def test_what_a_destroy_took_out_of_the_state_is_there_again() -> None:
    parent = f"{STACK}tpu:network:TrainingNetwork::net"
    gone = record(SUBNET, "sub", parent=parent, dependencies=[f"{STACK}{NETWORK}::net"])
    deployment = {"manifest": {}, "pending_operations": [{"type": "creating", "resource": gone}]}
    mark_pending(deployment, "p")
    resources = {resource["urn"]: resource for resource in deployment["resources"]}  # type: ignore[attr-defined]
    assert resources[PROVIDER]["id"] == "7"
    assert resources[PROVIDER]["inputs"]["project"] == "p"
    assert resources[parent] == {"urn": parent, "custom": False, "type": "tpu:network:TrainingNetwork"}
    assert resources[gone["urn"]]["dependencies"] == []


def test_a_type_whose_id_nobody_knows_is_refused_with_the_next_command() -> None:
    with pytest.raises(CommandError, match=r"Thing a.*\n.*pulumi -C infra/layers/network refresh .* -s dev"):
        mark_pending(state(("creating", record("gcp:new/thing:Thing", "a"))), "p")


# Locks


def test_a_clock_that_was_set_back_waits_no_longer_for_a_creation() -> None:
    now, patience = time.time(), Patience(creation_s=60.0)
    assert patience.until_shown_s([]) == 0
    assert patience.until_shown_s([now - 3600]) == 0
    assert 40 < patience.until_shown_s([now - 3600, now - 15]) <= 45
    assert patience.until_shown_s([now + 86_400]) == 60


def lock(pid: int, *, since: datetime | None = None, host: str = socket.gethostname()) -> Lock:
    return Lock("ann", host, pid, since or datetime.now(UTC))


def ended() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_that_ended_is_gone_and_one_of_another_machine_never() -> None:
    assert lock(ended()).gone
    assert not lock(ended(), host="elsewhere").gone
    assert not lock(os.getpid()).gone


def test_a_process_that_got_the_number_later_is_another_one() -> None:
    assert lock(os.getpid(), since=datetime.now(UTC) - timedelta(days=1)).gone


def test_a_process_that_nobody_has_asked_after_its_end_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert lock(process.pid).gone
    process.wait()


@pytest.fixture(name="backend")
def _backend(tmp_path: Path, pulumi_cli: FakePulumi) -> Path:
    """Return a folder as backend, whose stack of data has nothing to settle."""
    folder = tmp_path / "state/.pulumi"
    for name in ("locks/organization/data/dev", "stacks/data"):
        (folder / name).mkdir(parents=True)
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": BASE}))
    pulumi_cli.answer("whoami", {"url": f"file://{tmp_path / 'state'}"})
    pulumi_cli.answer("stack export", {"deployment": {}})
    return folder


def locked(backend: Path, pid: int, host: str) -> Path:
    """Write a lock as Pulumi does; return its file."""
    text = {"pid": pid, "username": "ann", "hostname": host, "timestamp": datetime.now(UTC).isoformat()}
    path = backend / "locks/organization/data/dev/1.json"
    path.write_text(json.dumps(text))
    return path


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
@pytest.mark.parametrize("command", ["settle dev data", "up dev data --yes", "down dev data --yes"])
def test_a_lock_whose_holder_may_live_stays(
    command: str, host: str, backend: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    path = locked(backend, os.getpid(), host)
    assert main(["infra", *command.split()], backend.parents[1]) == 1
    output = capfd.readouterr().err
    assert f"error: data is being worked on: locked by ann@{host} (pid {os.getpid()}) at 20" in output
    assert "pulumi -C infra/layers/data cancel -s dev --yes, and then tpu infra settle dev data" in output
    assert path.exists()
    assert not {"cancel", "up", "destroy", "stack import"} & {*pulumi_cli.commands()}


def test_a_home_as_backend_is_that_of_the_password_database_as_pulumi_has_it(
    backend: Path, pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """HOME is another folder in a CI's container."""
    locked(backend, os.getpid(), "elsewhere")
    pulumi_cli.answer("whoami", {"url": "file://~"})
    user = pwd.struct_passwd(("ann", "x", os.getuid(), os.getgid(), "", str(backend.parent), ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    monkeypatch.setenv("HOME", "/nowhere")
    assert main(["infra", "settle", "dev", "data"], backend.parents[1]) == 1
    assert "locked by ann@elsewhere" in capfd.readouterr().err


def test_the_lock_of_a_dead_process_and_the_files_that_it_left_empty_are_removed(
    backend: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    locked(backend, ended(), socket.gethostname())
    stacks = backend / "stacks/data"
    kept = [stacks / "dev.json", stacks / "dev.json.bak", stacks / "prod.json.attrs"]
    empty = [stacks / "dev.json.attrs", stacks / "dev.json.bak.attrs"]
    empty += [backend / "locks/organization/data/dev/1.json.attrs"]
    for path in (*kept, *empty):
        path.write_text("" if path.suffix == ".attrs" else "{}")
    assert main(["infra", "settle", "dev", "data"], backend.parents[1]) == 0
    output = capfd.readouterr().out
    assert "data: put aside the lock of ann@" in output
    assert all(f"data: removed {path.name}" in output for path in empty)
    assert pulumi_cli.commands().count("cancel") == 1
    assert [path.exists() for path in (*kept, *empty)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("command", ["settle dev data", "up dev data --yes", "down dev data --yes"])
@pytest.mark.usefixtures("backend")
def test_without_a_passphrase_the_fix_is_named_before_anything_is_done(
    command: str, tmp_path: Path, pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    assert main(["infra", *command.split()], tmp_path) == 1
    output = capfd.readouterr().err
    assert output.startswith("error: no passphrase for the stacks' secrets")
    assert "fix: export PULUMI_CONFIG_PASSPHRASE=" in output
    assert set(pulumi_cli.commands()) == {"whoami"}
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE_FILE", str(tmp_path / "passphrase"))
    assert main(["infra", *command.split()], tmp_path) == 0


# Ctrl+C

SLOW = """#!{python}
import pathlib, signal, sys, time
received = []
def end(number, _):
    received.append(signal.Signals(number).name)
    pathlib.Path(sys.argv[-1]).write_text('{{"stdoutEvent": {{"message": "received; cancelling"}}}}')
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("working", flush=True)
while not received:
    time.sleep(0.01)
time.sleep(3)
pathlib.Path({told!r}).write_text(" ".join(received))
sys.exit(7)
"""


@pytest.mark.parametrize(("number", "send", "received", "status"), [
    (signal.SIGINT, os.killpg, "SIGINT", 130),  # as a terminal does
    (signal.SIGTERM, os.kill, "SIGINT", 143),  # as a CI does, to the command alone
    (signal.SIGTERM, os.killpg, "SIGTERM", 143),  # as `timeout` does
])  # fmt: skip
def test_an_interrupted_command_lets_pulumi_end_in_order(
    number: int, send: Callable[[int, int], None], received: str, status: int, tmp_path: Path
) -> None:
    """By one signal: at a second Pulumi ends at once."""
    reported, program = tmp_path / "told", tmp_path / "pulumi"
    program.write_text(SLOW.format(python=sys.executable, told=str(reported)))
    program.chmod(0o755)
    code = (
        "import sys; from infra.engine.pulumi import Pulumi, run; "
        "sys.exit(run(lambda: Pulumi('dev').show('tpu', 'up') or 0))"
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "working\n"
    send(process.pid, number)
    _, output = process.communicate(timeout=HANG_S)
    assert reported.read_text() == received
    assert process.returncode == status
    assert "interrupted: the same command settles tpu, then continues" in output


# The settings' file

SETTINGS = "# mine\nconfig:\n  gcp:project:   p   # ours\n  data:sizeGib: 1000\n\n  network:cloudNat: true\n"
ADDED = "config:\n  a:b: c\nencryptionsalt: v1:a="
AS_PULUMI = 'config:\n  gcp:project: p\n  data:sizeGib: "1000"\n  network:cloudNat: "true"\n'


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (SETTINGS, f"{AS_PULUMI}encryptionsalt: v1:a=\n", f"{SETTINGS}encryptionsalt: v1:a=\n"),
        (SETTINGS[:-1], f"{AS_PULUMI}encryptionsalt: v1:a=\n", f"{SETTINGS}encryptionsalt: v1:a=\n"),
        (
            f"encryptionsalt: v1:a=\n{SETTINGS}",
            f"{AS_PULUMI}encryptionsalt: v1:b=\n",
            f"{SETTINGS}encryptionsalt: v1:b=\n",
        ),
        (
            SETTINGS.replace("\n", "\r\n"),
            f"{AS_PULUMI}encryptionsalt: v1:a=\n",
            f"{SETTINGS}encryptionsalt: v1:a=\n".replace("\n", "\r\n"),
        ),
        (SETTINGS, AS_PULUMI, SETTINGS),
        (SETTINGS, SETTINGS, SETTINGS),
        # Somebody changed a setting meanwhile: what he wrote stays.
        (SETTINGS, SETTINGS.replace("1000", "2000"), SETTINGS.replace("1000", "2000")),
        (SETTINGS, "config: {", "config: {"),
        # What stands in braces takes no line after it.
        ('{"config": {"a:b": "c"}}\n', f"{ADDED}\n", f"{ADDED}\n"),
        # What only PyYAML took for truth is a text to Pulumi, and stays as it was written.
        ("config:\n  a:b: yes # mine\n", 'config:\n  a:b: "yes"\n', "config:\n  a:b: yes # mine\n"),
    ],
)
def test_pulumi_adds_its_keys_and_formats_nothing(
    before: str, after: str, wanted: str, tmp_path: Path
) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_bytes(before.encode())
    path.chmod(0o640)
    with formatting_kept("dev", tmp_path):
        path.write_bytes(after.encode())
    assert path.read_bytes().decode() == wanted
    assert path.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["Pulumi.dev.yaml"]
