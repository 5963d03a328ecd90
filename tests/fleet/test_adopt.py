"""Nodes of ours that the stack doesn't hold come into it untouched; others are left alone, and said."""

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import yaml

from fleet import adopt, provision, stack
from fleet.failures import Kind
from fleet.state import Action, Cause, Condition, Decision, Place, Seen, View, ZoneView
from infra import names
from infra.settings.sources import ROOT
from tests.fleet.lab import LABELS, PROJECT, Here, Lab

KILLED = """
import sys
from pathlib import Path
from fleet.stack import Stack
from fleet.state import Place
from tests.fleet.lab import as_user

as_user()
Stack("dev", Path(sys.argv[1])).bring({sys.argv[2]: Place(sys.argv[3])})
"""


def one(action: Action, state: str, held: set[str] | None, labels: dict[str, str] | None = None) -> Decision:
    """What becomes of a decision about node n in this state."""
    seen = Seen("n", "z", state, "7", labels=LABELS if labels is None else labels)
    view = View(0.0, {"z": ZoneView({"n": seen})}, {})
    (found,) = adopt.told([Decision("n", "z", action, Condition.STARTING, "why")], view, held, LABELS)
    return found


@pytest.mark.parametrize("action", [Action.LEAVE, Action.WAIT, Action.REPLACE, Action.HOLD])
def test_a_live_node_that_the_stack_does_not_hold_is_taken_in_whatever_else_is_due(action: Action) -> None:
    found = one(action, "READY", held=set())
    assert (found.action, found.cause, found.instance) == (Action.ADOPT, Cause.NEW, "")
    assert found.condition is Condition.STARTING


@pytest.mark.parametrize(
    ("state", "held"),
    [("READY", {"n"}), ("READY", None), ("PREEMPTED", set()), ("CREATING", set()), ("DELETING", set())],
)
def test_other_decisions_stay(state: str, held: set[str] | None) -> None:
    assert one(Action.REPLACE, state, held).action is Action.REPLACE


@pytest.mark.parametrize("state", ["READY", "PREEMPTED", "CREATING"])
def test_a_node_without_our_labels_is_held_with_a_fix(state: str) -> None:
    found = one(Action.REPLACE, state, held=set(), labels={"layer": "tpu"})
    assert (found.action, found.cause) == (Action.HOLD, None)
    assert "fix: delete it by hand" in found.why
    assert one(Action.LEAVE, state, held={"n"}, labels={}).action is Action.LEAVE


def test_only_a_lock_of_a_process_of_ours_that_is_gone_is_abandoned() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    me, here = getpass.getuser(), socket.gethostname()

    def lock(user: str = me, host: str = here, pid: int = ended.pid) -> str:
        return f"currently locked by 1 lock(s)\n  file:///x.json: created by {user}@{host} (pid {pid}) at 2"

    assert stack._abandoned(lock())
    assert not stack._abandoned(lock(pid=os.getpid())), "it runs"
    assert not stack._abandoned(lock(host="another")), "nobody can say from here"
    assert not stack._abandoned(lock(user="another"))
    assert not stack._abandoned(lock() + lock(pid=os.getpid()))
    assert not stack._abandoned("[409] Conflict: Another update is currently in progress.")


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"), patience="60s", rate=200.0)
    with lab.entered():
        yield lab
    lab.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_update_killed_while_it_creates_leaves_a_node_that_is_taken_in_untouched(lab: Lab) -> None:
    name = lab.members[0].name
    lab.hosts.slow.add(name)
    line = [sys.executable, "-c", KILLED, str(lab.root), name, lab.places(name)[name].zone]
    child = subprocess.Popen(line, cwd=ROOT, start_new_session=True)
    lab.until(lambda: lab.state(name) == "CREATING", 60)
    time.sleep(1)  # until Pulumi has written down that it creates
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    lab.hosts.slow.clear()
    lab.until(lambda: lab.state(name) == "READY")
    left = deployment(lab)
    assert [each["type"] for each in left["pending_operations"]] == ["creating"]
    assert provision.known("dev", lab.root) == frozenset()
    before, asked = lab.node(name), len(lab.asked())
    lab.until(lambda: not runs_still(child.pid))

    assert Here(lab).stack.bring(lab.places(name)) == {name: None}
    assert lab.node(name) == before, "it was only read"
    assert {each["http_method"] for each in lab.asked()[asked:]} == {"GET"}
    assert provision.known("dev", lab.root) == {name}
    assert not deployment(lab).get("pending_operations")
    urn = names.node_urn("dev", name)
    (held,) = [each for each in deployment(lab)["resources"] if each["urn"] == urn]
    assert not held.get("protect")
    lab.pulumi("preview", "-s", "dev", "--target", urn, "--expect-no-changes")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_strays_are_taken_in_replaced_or_left_by_what_they_are(lab: Lab) -> None:
    alive, gone, foreign, unwanted = (each.name for each in lab.members[1:5])
    for member in lab.members[1:5]:
        lab.create(member.name, member.zone, {} if member.name == foreign else LABELS)
    for name in (gone, unwanted):
        lab.preempt(name)
    before = {name: (lab.node(name) or {})["id"] for name in (alive, gone, foreign)}
    updates = Here(lab).stack
    outcome = updates.bring(lab.places(alive, gone, foreign))
    assert (outcome[alive], outcome[gone]) == (None, None)
    refused = outcome[foreign]
    assert refused is not None
    assert refused.kind is Kind.EXISTS
    assert "without our labels" in refused.message
    after = {name: (lab.node(name) or {})["id"] for name in before}
    assert (after[alive], after[foreign]) == (before[alive], before[foreign])
    assert after[gone] != before[gone]
    assert lab.state(gone) == "READY"
    assert {alive, gone} <= provision.known("dev", lab.root)

    outcome = updates.remove([unwanted, foreign])
    assert outcome[unwanted] is None
    assert outcome[foreign] is not None
    assert (lab.state(unwanted), lab.state(foreign)) == ("", "READY")
    assert not lab.hosts.healthy_deleted


def deployment(lab: Lab) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = json.loads(lab.pulumi("stack", "export"))["deployment"]
    return found


def runs_still(group: int) -> bool:
    """Whether a process of a group is there, be it only as a zombie."""
    return subprocess.run(["pgrep", "-g", str(group)], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_member_is_moved_by_one_update_and_pulumi_agrees(lab: Lab) -> None:
    """Gone from the one zone, then made in the other; the settings say so, and nothing is left to change."""
    path = lab.root / "Pulumi.dev.yaml"
    content = yaml.safe_load(path.read_text())
    content["config"]["tpu:slices"][0]["otherZones"] = [lab.members[7].zone]
    path.write_text(yaml.safe_dump(content))
    name, home, other = lab.members[6].name, lab.members[6].zone, lab.members[7].zone
    updates = Here(lab).stack
    assert updates.bring({name: Place(home)}) == {name: None}
    assert f"/{home}/" in (lab.node(name) or {})["name"]
    lab.preempt(name)
    assert updates.bring({name: Place(other)}) == {name: None}
    there = [names.node_id(PROJECT, zone, name) for zone in (home, other)]
    assert [bool(lab.cloud.world.directory.get(one)) for one in there] == [False, True]
    assert yaml.safe_load(path.read_text())["config"]["tpu:moved"] == {name: other}
    lab.pulumi("preview", "-s", "dev", "--target", names.node_urn("dev", name), "--expect-no-changes")
