"""Checkpoints on their own: what a save waits for, and what is said of a state at the end."""

import logging
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from tests.limits import HANG_S
from workload.errors import TakenError
from workload.runs.store import FolderStore
from workload.train import checkpoints as saves
from workload.train.best import Evaluated
from workload.train.checkpoints import Checkpoints
from workload.train.cluster import Cluster, Membership
from workload.train.config import CheckpointConfig
from workload.train.stored_steps import list_steps, remove_step

pytestmark = pytest.mark.slow


def test_the_newest_steps_are_kept_as_many_as_the_config_says(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    checkpoints = Checkpoints(store, Cluster(Membership()), CheckpointConfig(keep=2))
    for step in (1, 2, 3, 4):
        checkpoints.save(step, {"a": jnp.full((4,), step)})
    checkpoints.wait()
    assert list_steps(store).complete == (3, 4)
    assert list_steps(store).incomplete == ()


def test_a_better_step_is_the_best_as_soon_as_its_save_has_ended(tmp_path: Path) -> None:
    """`tpu runs list` named the one before until the next save, minutes later."""
    config = CheckpointConfig(keep=1, keep_best=True)
    checkpoints = Checkpoints(FolderStore(tmp_path), Cluster(Membership()), config)
    for step, loss in ((1, 0.7), (2, 0.6)):
        checkpoints.save(step, {"a": jnp.ones(4)}, evaluated=Evaluated(loss, "a"))
        until = time.monotonic() + HANG_S
        while checkpoints.best != (step, loss):
            assert time.monotonic() < until
            assert checkpoints.best == (None if step == 1 else (1, 0.7)), "it isn't complete yet"
            time.sleep(0.01)
        assert step in list_steps(FolderStore(tmp_path)).complete
    checkpoints.wait()
    assert checkpoints.best == (2, 0.6)


class Slow(FolderStore):
    """A storage whose deletions wait for a gate."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.gate, self.deleting = threading.Event(), threading.Event()

    def delete(self, name: str) -> None:
        self.deleting.set()
        assert self.gate.wait(HANG_S)
        super().delete(name)


def test_a_save_does_not_wait_until_an_old_step_is_gone(tmp_path: Path) -> None:
    store = Slow(tmp_path)
    checkpoints = Checkpoints(store, Cluster(Membership()), CheckpointConfig(keep=1))
    for step in (1, 2, 3):
        checkpoints.save(step, {"a": jnp.full((64, 8), step)})
    assert store.deleting.wait(HANG_S)
    assert not store.gate.is_set(), "the third save began while the first step was still being retired"
    store.gate.set()
    checkpoints.wait()
    assert list_steps(store).complete == (3,)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]


def test_a_start_that_is_replaced_during_a_save_completes_nothing(tmp_path: Path) -> None:
    store, flushed = FolderStore(tmp_path), []

    def guard() -> None:
        if not threading.current_thread().name.startswith("save"):  # by the commit, not before the save
            raise TakenError("another start has taken this run over")

    checkpoints = Checkpoints(store, Cluster(Membership()), CheckpointConfig(), guard, flushed.append)
    checkpoints.save(1, {"a": jnp.ones(4)})
    with pytest.raises(TakenError):
        checkpoints.wait()
    assert list_steps(store).complete == ()
    assert not flushed, "losses belong to the start that holds the lease"


class Recording(FolderStore):
    """A storage that knows the order of its deletions."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.deleted: list[str] = []

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        super().delete(name)


def test_a_step_loses_its_marker_before_anything_else(tmp_path: Path) -> None:
    """A kill in between would else leave half a step that counts as complete."""
    store = Recording(tmp_path)
    for name in ("a/data", "commit_success.txt", "manifest"):
        store.write(f"checkpoints/1/{name}", b"x")
    remove_step(store, 1)
    assert store.deleted[0] == "checkpoints/1/commit_success.txt"
    assert store.list("") == []


@pytest.mark.parametrize(
    ("where", "shown"), [("/x/orbax/checkpoint/serialization.py", False), ("/x/mine.py", True)]
)
def test_of_a_failed_save_asyncio_says_nothing_of_its_own(
    where: str, shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several writes that were gathered it names only the error; what others fail at is told."""
    saves.quiet_failures()
    try:
        exec(compile("raise ValueError('full')", where, "exec"), {})
    except ValueError as error:
        output = "_GatheringFuture exception was never retrieved"
        logging.getLogger("asyncio").error(output, exc_info=(ValueError, error, error.__traceback__))
    assert ("full" in caplog.text) is shown
