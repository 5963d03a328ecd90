"""Slices that people name: deleted through the API, made again by one update of Pulumi's, killed or not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from unittest import mock

import pytest

from fleet import recovery
from fleet.controller import Controller
from fleet.decide import Limits
from fleet.model import Action
from fleet.store import BucketStore, runs
from fleet.zones import Verb
from infra.engine.named import create, read_stack
from infra.google.failures import Kind
from infra.settings.sources import ROOT
from infra.slices.names import slice_urn
from tests.fleet.lab_stack import Here, StackLab

pytestmark = [pytest.mark.slow, pytest.mark.prove]
KILLED = """
import sys
from pathlib import Path
from infra.engine.named import create, read_stack

create("dev", sys.argv[2:], Path(sys.argv[1]))
"""


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackLab]:
    with closing(StackLab(tmp_path_factory.mktemp("lab"))) as lab, lab.entered():
        lab.pulumi("up", "--yes", "--skip-preview", "-s", "dev")
        yield lab


def controller(lab: StackLab, lead: bool = True) -> Controller:
    opened = lab.opened()
    named = [node for node in opened.members if node.member is None]
    store = BucketStore(opened.google, opened.stack.id, lab.now_s)
    with mock.patch("fleet.store.runs", return_value=False):
        return Controller(
            named, opened.google, Here(lab, opened), store, Limits(), opened.owner, everyone=opened.members,
            lead=lead,
        )  # fmt: skip


def nothing_left(lab: StackLab) -> None:
    """Of this test, nor of those before it."""
    lab.pulumi("preview", "--expect-no-changes", "--refresh", "-s", "dev")


def test_an_update_makes_the_named_ones_marks_the_stack_and_leaves_the_fleet_to_its_controller(
    lab: StackLab,
) -> None:
    state = lab.read()
    assert state.held == {"train": "us-east5-b", "eval": "us-central1-b"}
    assert sorted(lab.everyone()) == ["eval", "train"]
    assert len(state.id) == 7


def test_what_was_preempted_is_deleted_by_the_api_and_made_by_one_update(lab: StackLab) -> None:
    stood, lost = ((lab.node(name) or {})["id"] for name in ("eval", "train"))
    lab.preempt("train")
    keeper, deletions = controller(lab), lab.deleted
    looks = lab.keep(keeper, lambda observation: lab.state("train") == "READY" and not keeper.busy)
    keeper.leave()
    begun = [event for observation in looks for event in observation.events if "train: " in event]
    assert [item.split(" (")[0] for item in begun][:2] == ["train: replace", "train: create"], begun
    assert lab.deleted - deletions == {"PREEMPTED": 1}
    assert (lab.node("train") or {})["id"] != lost
    assert (lab.node("eval") or {})["id"] == stood
    assert "train" in lab.read().held


def test_killed_between_deletion_and_update_the_next_run_finishes(lab: StackLab) -> None:
    lab.preempt("train")
    keeper = controller(lab)
    requests: list[Verb] = []
    with mock.patch.object(Here, "begin", autospec=True) as begin:
        keeper.step()
        requests = [call.args[1].verb for call in begin.call_args_list]
        for call in begin.call_args_list:
            keeper.actor._zones.begin(call.args[1])  # type: ignore[attr-defined]
    assert requests == [Verb.DELETE]
    keeper.actor._zones.wait()  # type: ignore[attr-defined]
    lab.until(lambda: not lab.state("train"))
    later = controller(lab, lead=False)
    observation = later.step()
    (item,) = [decision for decision in observation.decisions if decision.node == "train"]
    assert (item.action, recovery.was_lost(item, later)) == (Action.CREATE, True)
    with mock.patch("fleet.store.runs", return_value=False):
        later.lead()
    lab.keep(later, lambda observation: lab.state("train") == "READY" and not later.busy)
    later.leave()
    nothing_left(lab)


def test_a_zone_without_chips_keeps_no_other_waiting_and_is_told_apart(lab: StackLab) -> None:
    lab.preempt("train", "eval")
    lab.hosts.may_go |= {"train", "eval"}
    lab.delete("train", "eval")
    no_chips = "There is no more capacity in the zone"
    dry = {"match": {"method": "tpu.*.nodes.create", "path": "/us-east5-b/"},
           "what": {"operation_error": {"code": "RESOURCE_EXHAUSTED", "message": no_chips}}}  # fmt: skip
    rule = lab.cloud.faults.add(dry)
    outcome = create("dev", ["train", "eval"], lab.root)
    assert lab.cloud.faults.lift(rule) == 1
    assert outcome["eval"] is None
    assert outcome["train"] is not None
    assert outcome["train"].kind is Kind.STOCK_OUT
    assert (lab.state("train"), lab.state("eval")) == ("", "READY")
    assert create("dev", ["train"], lab.root) == {"train": None}


def test_killed_during_the_creation_what_was_made_is_taken_in_by_the_next(lab: StackLab) -> None:
    """The lock of a Pulumi that is gone is put aside, and its record of the creation becomes the slice."""
    lab.preempt("train")
    lab.hosts.may_go.add("train")
    lab.delete("train")
    lab.hosts.slow.add("train")
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(lab.root), "train"], cwd=ROOT, start_new_session=True,
        env={**os.environ, **lab.environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    lab.until(lambda: lab.state("train") == "CREATING")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    lab.hosts.slow.clear()
    lab.until(lambda: lab.state("train") == "READY")
    made = (lab.node("train") or {})["id"]
    assert not runs(child.pid)
    observation = controller(lab, lead=False).step()
    (item,) = [decision for decision in observation.decisions if decision.node == "train"]
    assert item.action is Action.HOLD
    assert "fix: if an update of yours was killed: tpu infra settle dev tpu" in item.why
    assert create("dev", ["train"], lab.root) == {"train": None}
    assert "train" in (lab.read().held or {})
    assert (lab.node("train") or {})["id"] == made
    assert lab.state("train") == "READY"
    nothing_left(lab)


@pytest.mark.parametrize("chosen", ["train", "**"])
def test_what_a_destroy_took_from_the_stack_stays_away_beside_a_monitor(
    chosen: str, lab: StackLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor read what the stack holds when it began; each creation reads it anew."""
    monkeypatch.setattr("fleet.environment.read_stack", lambda name: read_stack(name, lab.root))
    lab.hosts.may_go |= {"train", "eval"}
    keeper, opened = controller(lab), lab.opened()
    keeper.follow(
        [node for node in opened.members if node.member is None], opened.members,
        refused=lambda members: opened.refused(members, unheld=False),
    )  # fmt: skip
    lab.keep(keeper, lambda _: lab.state("train") == "READY" and not keeper.busy)
    target = slice_urn("dev", "train") if chosen == "train" else chosen
    lab.pulumi("destroy", "--yes", "--skip-preview", "-s", "dev", "--target", target, "--target-dependents")
    before, looks = len(lab.requested("nodes.create")), [keeper.step() for _ in range(4)]
    assert lab.requested("nodes.create")[before:] == []
    (item,) = (decision for decision in looks[-1].decisions if decision.node == "train")
    assert item.action is Action.HOLD
    fix = "the stack doesn't hold it: not created\n    fix: tpu up dev tpu"
    assert fix in item.why or "the stack dev of tpu isn't up" in item.why
    outcome = create("dev", ["train"], lab.root)["train"]
    assert outcome is not None, "nor by an update that had been requested before"
    assert "doesn't hold it any more" in outcome.message
    keeper.leave()
    lab.pulumi("up", "--yes", "--skip-preview", "-s", "dev")
