"""Deletions: the slices that they leave, and the next command of their messages."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fleet.model import View, WorkerStatus
from infra.google.failures import Failure, Kind
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


def test_a_deletion_that_finds_only_slices_of_the_stack_says_what_stays_and_succeeds(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts delete, then take down."""
    assert fleet(["delete", "dev", "--yes"]) == 0
    requests = [*world.requests]
    capsys.readouterr()
    assert fleet(["delete", "dev", "--yes"]) == 0
    fix = "tpu down dev; or one by its name: --slice train"
    stays = f"  leave   train, which the stack holds: {fix}\nnothing to delete\n"
    assert capsys.readouterr().out == stays
    assert world.requests == requests


def test_after_a_failure_the_same_command_deletes_the_same(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command without its selection would delete others, and leave the slice."""
    world.failure = Failure(Kind.PERMISSION, "no")
    assert fleet(["delete", "dev", "--slice", "train", "--yes"]) == 1
    error = capsys.readouterr().err
    assert error.endswith("    fix: this command again\n")
    assert "tpu fleet delete dev" not in error
    world.failure = None
    assert fleet(["delete", "dev", "--slice", "train", "--yes"]) == 0
    assert {name for name, state in world.states.items() if not state} == {"train"}


def test_a_deleted_slice_that_the_stack_holds_comes_back_only_if_its_work_is_not_done(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    observe, done = world.observe, WorkerStatus(0.0, "ready", "launch", "done")
    world.statuses["train"] = done

    def outlived(zones: Sequence[str]) -> View:
        """As the bucket does, show the heartbeats of a node that is gone."""
        view = observe(zones)
        kept = {"train": [replace(done, at_s=view.at_s - 60)]} if "train" in world.statuses else {}
        return replace(view, statuses={**kept, **(view.statuses or {})})

    monkeypatch.setattr(world, "observe", outlived)
    assert fleet(["delete", "dev", "--slice", "train", "--yes"]) == 0
    assert world.requests == [("delete", "train")]
    output = capsys.readouterr().out
    assert "still holds train, and tpu recover or a monitor recreates what isn't done" in output
    assert "delete the entry in Pulumi.dev.yaml, then tpu up dev\n" in output
    assert "tpu fleet create" not in output
    world.states["train"] = ""
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert "nothing to recover" in capsys.readouterr().out
    assert world.requests == [("delete", "train")], "it would be billed again"
    assert fleet(["status", "dev"]) == 0
    assert "its work is done; it was deleted, and isn't recreated" in capsys.readouterr().out
    del world.statuses["train"]
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert world.requests[1:] == [("up", "train")]
