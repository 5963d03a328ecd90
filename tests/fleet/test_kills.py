"""A controller killed before and after each of its requests: the next one resumes from what is at Google."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest import mock

import pytest

from fleet import recovery
from fleet.environment import Environment
from infra.settings.schema import Settings
from infra.settings.sources import ROOT
from infra.slices.nodes import Node
from tests.fleet.asking import KilledError
from tests.fleet.command import fleet
from tests.fleet.conftest import ZONES
from tests.fleet.lab import FLEET, STACK, Lab, settings
from tests.limits import HANG_S

SPARE = "us-east1-d"
DRY = "us-east5-b"
LOST = (DRY, "us-central1-b", "europe-west4-a")
NO_CHIPS = "There is no more capacity in the zone"


@dataclass(frozen=True)
class Scenario:
    """Actions during which a controller is killed.

    Attributes:
        meant: the settings.
        prepare: makes what is there before; members that are to be brought back.
        dry: a zone without chips.
        deletes: states in which nodes may be found by deletions.
        requests: at least so many creations and deletions.
    """

    meant: Settings
    prepare: Callable[[Lab, Sequence[Node]], Sequence[Node]]
    dry: str = ""
    deletes: frozenset[str] = frozenset({"PREEMPTED"})
    requests: int = 8


def nothing(_: Lab, __: Sequence[Node]) -> Sequence[Node]:
    return ()


def three_lost(lab: Lab, members: Sequence[Node]) -> Sequence[Node]:
    lab.create(*members)
    lost = [member for member in members if member.zone in LOST]
    lab.preempt(*(item.name for item in lost))
    return lost


def one_failed(lab: Lab, members: Sequence[Node]) -> Sequence[Node]:
    lab.create(*members)
    lab.says_that_its_boot_failed(members[0].name)
    return members[:1]


SCENARIOS = {
    "8 from nothing": Scenario(settings(), nothing),
    "3 preempted, one without chips": Scenario(
        settings({**FLEET, "zones": [*LOST, "us-east5-a"], "count": 4, "fallbackZones": [SPARE]}),
        three_lost,
        DRY,
        requests=7,
    ),
    "1 whose boot failed": Scenario(
        settings({**FLEET, "zones": list(ZONES[:3]), "count": 3}),
        one_failed,
        deletes=frozenset({"READY"}),
        requests=2,
    ),
}


def of_members(lab: Lab) -> dict[str, list[dict[str, Any]]]:
    """All nodes, by the key of the member that they are."""
    mapping: dict[str, list[dict[str, Any]]] = {}
    for item in lab.everyone().values():
        mapping.setdefault(f"{item['labels']['fleet']}/{item['labels']['member']}", []).append(item)
    return mapping


def brought_back_if_asked(opened: Environment) -> set[str]:
    """The members that `recover` means, and shows the price of."""
    with (
        mock.patch.object(recovery, "opened", return_value=opened),
        mock.patch.object(recovery.slices_price, "rows", return_value=[]) as rows,
    ):
        assert fleet(["recover", "dev", "--dry-run"]) == 0
    return {member.key for call in rows.call_args_list for member in call.args[0]}


def killed(lab: Lab, scenario: Scenario, number: int, before: bool) -> str:
    """The request at which a controller was killed and another continued; empty if all was done by then."""
    lab.begin_anew()
    members = lab.fleet(scenario.meant).members
    lost = scenario.prepare(lab, members)
    was = {name: item["id"] for name, item in lab.everyone().items()}
    deleted = lab.deleted
    rule = {"match": {"method": "tpu.*.nodes.create", "path": f"/{scenario.dry}/"},
            "what": {"operation_error": {"code": "RESOURCE_EXHAUSTED", "message": NO_CHIPS}}}  # fmt: skip
    fault = lab.cloud.faults.add(rule) if scenario.dry else ""

    def all_there() -> bool:
        existing = of_members(lab)
        return len(existing) == len(members) and all(
            item["state"] == "READY" and item["id"] not in gone
            for several in existing.values()
            for item in several
        )

    gone = {was[item.name] for item in lost}
    first = lab.fleet(scenario.meant, lab.asking(kill_at=number, before=before))
    asking, controller = first.google, None
    assert hasattr(asking, "changes")
    try:
        controller = lab.controller(first)
        lab.keep(controller, lambda _: all_there() and not controller.busy)
        controller.leave()
        done = True
    except KilledError:
        done = False
    if controller:
        controller.actor.wait()  # type: ignore[attr-defined]  # what was sent is carried out
    lab.settle()
    second = lab.fleet(scenario.meant)
    present = of_members(lab)
    missing = {
        item.key for item in lost if all(now["state"] == "PREEMPTED" for now in present.get(item.key, ()))
    }
    assert brought_back_if_asked(second) == missing
    controller = lab.controller(second)
    lab.keep(controller, lambda _: all_there() and not controller.busy)
    spent = sum(
        len(several)
        for key, several in controller.state.attempts.items()
        if key in {item.key for item in lost}
    )
    assert spent == len(lost), "a loss costs one attempt, however often somebody was killed over it"
    controller.leave()
    if fault:
        assert lab.cloud.faults.lift(fault), "the zone had chips"
    present = of_members(lab)
    assert {key: len(several) for key, several in present.items()} == {member.key: 1 for member in members}
    untouched = {name: item for name, item in was.items() if item not in gone}
    assert untouched.items() <= {name: item["id"] for name, item in lab.everyone().items()}.items()
    assert lab.hosts.healthy_deleted == []
    result = lab.deleted - deleted
    assert result.keys() <= scenario.deletes
    assert result.total() == len(lost), "each once"
    return "" if done else asking.changes[number - 1]


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("1 whose boot failed", "after"),
        *(
            pytest.param(name, side, marks=pytest.mark.prove)
            for name, side in product(SCENARIOS, ("before", "after"))
            if (name, side) != ("1 whose boot failed", "after")
        ),
    ],
)
def test_the_next_controller_goes_on_wherever_one_was_killed(lab: Lab, name: str, side: str) -> None:
    scenario, before = SCENARIOS[name], side == "before"
    kills: list[str] = []
    while request := killed(lab, scenario, len(kills) + 1, before):
        kills.append(request)
    # From run to run the order differs: neighbours may be met twice or not at all.
    assert len(kills) >= scenario.requests + 3, kills
    assert {request.startswith("POST upload/") for request in kills} == {True, False}


COMMAND = """
import sys
from fleet import environment, recovery
from tests.fleet.command import fleet
from tests.fleet.lab import as_user, settings

as_user()
recovery._POLL_S = 0.2
environment.from_file = lambda *_, **__: settings()
sys.exit(fleet(sys.argv[1:]))
"""


def instances(lab: Lab) -> dict[str, str]:
    return {name: item["id"] for name, item in lab.everyone().items()}


@pytest.mark.prove  # test_command.py has a recovery that is killed at each request, in process
def test_a_command_that_was_killed_outright_is_followed_by_one_that_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lab = Lab(tmp_path_factory.mktemp("lab"), rate=20.0)
    try:
        with lab.entered():
            names = [member.name for member in lab.fleet().members]
            # One creation reaches Google after who asked for it is gone.
            late = {"match": {"method": "tpu.*.nodes.create", "path": "/us-east5-b/"}, "times": 1,
                    "what": {"delay_s": 3.0}}  # fmt: skip
            lab.cloud.faults.add(late)
            variables = {**os.environ, **lab.environment, "TPU_STACK_ID": STACK}
            first = subprocess.Popen(line("create"), cwd=ROOT, env=variables)
            lab.until(lambda: len(lab.everyone()) == len(names) - 1)
            os.kill(first.pid, signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
            stood = instances(lab)
            done = subprocess.run(
                line("create"), cwd=ROOT, env=variables, text=True, timeout=HANG_S, check=False,
                capture_output=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            lab.until(lambda: all(lab.state(name) == "READY" for name in names))
            assert sorted(lab.everyone()) == sorted(names), "nothing twice, nothing forgotten"
            assert stood.items() <= instances(lab).items()
            assert not lab.deleted
    finally:
        lab.close()


def line(command: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, command, "dev", "--yes"]
