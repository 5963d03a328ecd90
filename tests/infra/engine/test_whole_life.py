"""The layers of a small environment by the real Pulumi CLI, from nothing to nothing: about a minute.

`make rehearse` brings the same layers up and down every day. `make prove` has this test and more of its kind:
kills at every request, GKE, monitoring, policy, accounts, another layer.
"""

from collections.abc import Iterator

import pytest

from tests.infra.lab import RETAINED, Lab

LAYERS = ("storage", "network", "data", "tpu")
WITHOUT_ASKING = ("--yes", "--skip-preview")
pytestmark = [pytest.mark.prove, pytest.mark.slow]


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    assert lab.cloud.world.mistakes == []
    lab.close()


def test_layers_come_up_survive_a_kill_stay_as_they_are_and_leave_nothing(lab: Lab) -> None:
    lab.infra("up", "dev", "storage", "network", *WITHOUT_ASKING)
    lab.publish()

    # A killed update leaves its lock, and disks that the state doesn't have.
    before = lab.living()
    lab.pulumi("data", "stack", "init", "dev")
    assert "/zones/" in lab.killed(lab.line("data", "up", "-s", "dev", *WITHOUT_ASKING), 2)
    disks = lab.living() - before
    assert disks
    assert lab.locked("data")
    output = lab.infra("up", "dev", "data", "tpu", *WITHOUT_ASKING)
    assert "data: put aside the lock of " in output
    assert output.count("made, and imported") == len(disks)
    assert sum("/nodes/" in name for name in lab.living()) == 2

    # Nothing to change, neither by the state nor by what Google has.
    for layer in LAYERS:
        lab.pulumi(layer, "preview", "-s", "dev", "--refresh", "--expect-no-changes")

    lab.infra("down", "dev", "network", "data", "tpu", *WITHOUT_ASKING)
    lab.pulumi("storage", "state", "unprotect", "-s", "dev", "--all", "--yes")
    lab.infra("down", "dev", "storage", *WITHOUT_ASKING)
    assert lab.living() <= RETAINED
