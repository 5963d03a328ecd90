"""What a deletion leaves, and what its messages say to do next."""

import pytest

from tests.fleet.command import fleet
from tests.fleet.world import Cloud, _world  # noqa: F401


def test_slices_of_the_stack_are_deleted_by_name_alone(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet(["delete", "dev", "--yes"]) == 0
    fix = "tpu down dev; or one by its name: --slice train"
    assert f"  leave   train, which the stack holds: {fix}\n" in capsys.readouterr().out
    assert {name for name, state in world.states.items() if state} == {"train"}
    assert fleet(["delete", "dev", "--zones", "us-east5-b", "--yes"]) == 2
    error = capsys.readouterr().err
    assert error == f"error: train: held by the stack; nothing was deleted\n    fix: {fix}\n"
    assert fleet(["delete", "dev", "--slice", "train", "--yes"]) == 0
    assert ("delete", "train") in world.requests
