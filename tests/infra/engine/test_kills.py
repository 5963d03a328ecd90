"""Some kills of `python -m tests.proofs updates`, and bare commands after them, by the real CLI: 1 min."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.infra.lab import PROJECT, SETTINGS, Lab

DISKS = {f"projects/{PROJECT}/zones/us-east5-{zone}/disks/corpus-us-east5-{zone}" for zone in "ab"}
pytestmark = [pytest.mark.prove, pytest.mark.slow]
WITHOUT_ASKING = ("--yes", "--skip-preview")
UP = ("up", "-s", "dev", *WITHOUT_ASKING)
DESTROY = ("destroy", "-s", "dev", *WITHOUT_ASKING)


@pytest.fixture(name="lab")
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("PATH", f"{names_of_programs()}{os.pathsep}{os.environ['PATH']}")
    lab = Lab(tmp_path, apis=("compute.googleapis.com",))
    yield lab
    lab.close()


def names_of_programs() -> Path:
    """Where set-up puts the pinned programs."""
    return Path(__file__).parents[3] / ".venv" / "bin"


def test_a_killed_up_is_taken_in_and_a_killed_destroy_is_ended(lab: Lab) -> None:
    lab.pulumi("data", "stack", "init", "dev")
    assert "/zones/" in lab.killed(lab.line("data", *UP), 2)  # a disk's creation, or a look at its operation
    made = lab.living()
    assert made
    assert made <= DISKS
    assert "currently locked by 1 lock" in lab.pulumi("data", *UP, fine=False)
    lab.settings.write_text(SETTINGS)  # as before any stack: no salt

    output = lab.infra("up", "dev", "data", *WITHOUT_ASKING)
    assert "data: put aside the lock of " in output
    assert output.count("made, and imported") == len(made)
    assert {resource.get("id") for resource in lab.state("data")["resources"]} > DISKS
    lab.pulumi("data", "preview", "-s", "dev", "--expect-no-changes")
    assert lab.infra("settle", "dev", "data") == "data: nothing to settle\n"

    assert lab.killed(lab.line("data", *DESTROY), 4)
    output = lab.infra("down", "dev", "data", *WITHOUT_ASKING)
    assert "data: destroyed; its settings stay in Pulumi.dev.yaml" in output
    assert "stack rm" not in output, "it would delete the settings of all layers"
    assert lab.living() == set()
    assert lab.settings.read_text().startswith(SETTINGS)
    assert lab.settings.read_text().removeprefix(SETTINGS).startswith("encryptionsalt: v1:")


def test_bare_commands_after_a_kill_name_the_one_that_helps_and_lose_nothing(lab: Lab) -> None:
    lab.pulumi("data", "stack", "init", "dev")
    assert lab.killed(lab.line("data", *UP), 2)
    made = lab.living()
    assert made
    readable(lab)
    lab.pulumi("data", "cancel", "--yes", "-s", "dev")
    output = lab.pulumi("data", *UP, fine=False)
    assert "a `pulumi` was killed while creating Disk us-east5-a" in output
    assert "fix: tpu infra settle dev data" in output
    assert "Traceback" not in output
    # It calls deleted what it doesn't know, and only warns; its record of that stays.
    assert "interrupted while creating" in lab.pulumi("data", *DESTROY)
    assert lab.living() == made
    output = lab.infra("down", "dev", "data", *WITHOUT_ASKING)
    assert output.count("made, and imported") == len(made)
    assert lab.living() == set()
    assert "data: nothing is up" in lab.infra("down", "dev", "data", *WITHOUT_ASKING)


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_the_lock_of_somebody_who_may_live_stays(lab: Lab, host: str) -> None:
    lab.pulumi("data", "stack", "init", "dev")
    assert lab.killed(lab.line("data", *UP), 0)
    (path,) = (lab.folder / "state/.pulumi/locks/organization/data/dev").glob("*.json")
    now = datetime.now(UTC).isoformat()
    lock = {"pid": os.getpid(), "username": "ann", "hostname": host, "timestamp": now}
    path.write_text(json.dumps(lock))
    before = stored(lab)
    for command in ("settle", "up", "down"):
        options = WITHOUT_ASKING if command != "settle" else ()
        output = lab.infra(command, "dev", "data", *options, fine=False)
        assert f"error: data is being worked on: locked by ann@{host} (pid {os.getpid()})" in output
        assert "pulumi -C infra/layers/data cancel -s dev --yes, and then tpu infra settle dev data" in output
    assert (stored(lab), path.exists()) == (before, True)


def readable(lab: Lab) -> None:
    """Only a kill's instant tells whether Pulumi's bare commands can read its state: for the test below."""
    for path in (lab.folder / "state/.pulumi").rglob("*.attrs"):
        if not path.read_bytes():
            path.unlink()


def stored(lab: Lab) -> dict[Path, bytes]:
    """The stacks' files as they lie there: a kill may have left them such that nothing can be exported."""
    return {path: path.read_bytes() for path in (lab.folder / "state/.pulumi/stacks").rglob("*.json*")}


def test_a_state_that_a_kill_left_unreadable_is_read_again(lab: Lab) -> None:
    lab.pulumi("data", "stack", "init", "dev")
    attributes = lab.folder / "state/.pulumi/stacks/data/dev.json.attrs"
    attributes.write_bytes(b"")  # as a kill in the middle of its writing leaves it
    assert "failed to load checkpoint: EOF" in lab.pulumi("data", *UP, fine=False)
    assert "data: removed dev.json.attrs" in lab.infra("settle", "dev", "data")
    lab.pulumi("data", "preview", "-s", "dev")


def test_without_a_passphrase_every_command_says_so_once_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{names_of_programs()}{os.pathsep}{os.environ['PATH']}")
    lab = Lab(tmp_path)
    try:
        lab.pulumi("data", "stack", "init", "dev")
        del lab.environment["PULUMI_CONFIG_PASSPHRASE"]
        for command in (("settle", "dev"), ("up", "dev", "--yes"), ("down", "dev", "data", "--yes")):
            output = lab.infra(*command, fine=False)
            assert output.startswith("error: no passphrase for the stacks' secrets")
            assert "fix: export PULUMI_CONFIG_PASSPHRASE=" in output
            assert output.count("\n") == 2
        lab.environment["PULUMI_CONFIG_PASSPHRASE_FILE"] = str(tmp_path / "passphrase")
        (tmp_path / "passphrase").write_text("test")
        assert lab.infra("settle", "dev", "data") == "data: nothing to settle\n"
    finally:
        lab.close()
