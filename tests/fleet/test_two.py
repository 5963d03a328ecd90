"""Two people with a backend each, two controllers of one stack, and a process that is killed outright."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fleet.errors import FleetError
from fleet.model import Action
from fleet.store import EXPIRES_S
from infra.settings.sources import ROOT
from tests.fleet.asking import Asking
from tests.fleet.lab import FLEET, STACK, Lab, settings
from tests.limits import HANG_S

OTHER = "5d6e7f8"
TWO = settings({**FLEET, "zones": ["us-east5-b", "us-central1-b"], "count": 2})
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


@pytest.fixture(name="lab")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    with lab.entered():
        yield lab
    lab.close()


def nodes(lab: Lab) -> dict[str, str]:
    return {name: item["id"] for name, item in lab.everyone().items()}


def changed(asking: object) -> list[str]:
    """Requests that change nodes."""
    assert isinstance(asking, Asking)
    return [change for change in asking.changes if "/nodes" in change]


def test_another_stack_with_the_same_settings_touches_and_counts_none_of_ours(lab: Lab) -> None:
    mine, yours = lab.fleet(TWO), lab.fleet(TWO, stack=OTHER)
    lab.create(*mine.members, one=mine)
    lab.preempt("tpu-us-east5-b-0")
    stood = nodes(lab)
    other = lab.controller(yours)
    looks = [other.step() for _ in range(3)]
    other.leave()
    assert {decision.action for observation in looks for decision in observation.decisions} == {Action.HOLD}
    assert "it is of another stack, 1a2b3c4" in looks[-1].decisions[0].why
    assert not any(observation.orphans or observation.outdated for observation in looks)
    assert yours.all_nodes == []
    assert changed(yours.google) == []
    assert nodes(lab) == stood
    first = lab.controller(mine, after_a_kill=False)  # each has a lease of its own
    lab.keep(first, lambda _: lab.all_ready(stood, first))
    first.leave()
    assert nodes(lab)["tpu-us-central1-b-0"] == stood["tpu-us-central1-b-0"]
    assert nodes(lab)["tpu-us-east5-b-0"] != stood["tpu-us-east5-b-0"]
    state = lab.request("GET", "storage.googleapis.com/storage/v1/b/wire-test-checkpoints-fleet/o")
    assert {item["name"] for item in state["items"]} >= {f"{STACK}/controller.json"}


def test_a_second_controller_of_one_stack_is_refused_until_the_lease_has_expired(lab: Lab) -> None:
    fleet = lab.fleet(TWO)
    first = lab.controller(fleet)
    lab.keep(first, lambda _: lab.all_ready([member.name for member in fleet.members], first))
    lab.preempt("tpu-us-east5-b-0")
    stood = nodes(lab)

    async def hold() -> None:
        lab.cloud.world.clock.rate = 0.0

    lab.call(hold())
    first.forget(())  # a write, which renews the lease
    second = lab.fleet(TWO)
    with pytest.raises(FleetError, match=r"another controller acts, on .*, process"):
        lab.controller(second, after_a_kill=False)
    assert changed(second.google) == []
    assert nodes(lab) == stood
    lab.ahead_s += EXPIRES_S
    later = lab.controller(second, after_a_kill=False)
    later.forget(())
    with pytest.raises(FleetError, match="another controller acts"):
        first.step()
    assert nodes(lab) == stood, "who was written over does nothing more"


@pytest.mark.slow
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
            stood = nodes(lab)
            done = subprocess.run(
                line("create"), cwd=ROOT, env=variables, text=True, timeout=HANG_S, check=False,
                capture_output=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            lab.until(lambda: all(lab.state(name) == "READY" for name in names))
            assert sorted(lab.everyone()) == sorted(names), "nothing twice, nothing forgotten"
            assert stood.items() <= nodes(lab).items()
            assert not lab.deleted
    finally:
        lab.close()


def line(command: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, command, "dev", "--yes"]
