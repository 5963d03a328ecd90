"""Checkpoints in a bucket of their own, and what of them is copied to where nothing is lost."""

import json
import re
import time
from pathlib import Path

import pytest
import requests

from tests.limits import HANG_S
from tests.workload.slice import command, train
from workload.errors import StoreError
from workload.runs.location import of_steps
from workload.runs.store import FolderStore, Store, copy, open_store
from workload.train.durable import NOTE, DurableCopies
from workload.train.stored_steps import list_steps

HOST = {"CHECKPOINT_BUCKET": "bucket", "STEPS_BUCKET": "bucket-steps"}


@pytest.fixture
def steps(store: Store, tmp_path: Path) -> Store:
    """Beside `store`, of its kind."""
    if store.url.startswith("gs://"):
        return open_store(f"gs://bucket/{tmp_path.name}/steps")
    return open_store(str(tmp_path / "steps"))


def saved(store: Store, *numbers: int, complete: bool = True) -> None:
    for step in numbers:
        store.write(f"checkpoints/{step}/d/data", f"data of {step}".encode())
        if complete:
            store.write(f"checkpoints/{step}/commit_success.txt", b"")


def durable(run: Store, steps: Store, every_h: float = 24) -> DurableCopies:
    run.write("config.json", b"{}")
    return DurableCopies(run, steps, every_h, keep=2)


def content(store: Store) -> dict[str, bytes]:
    return {name: store.read(name) for name in store.list("checkpoints/")}


def test_an_object_is_copied_whole(store: Store, steps: Store) -> None:
    steps.write("a/b", b"content")
    copy(steps, "a/b", store)
    assert store.read("a/b") == b"content"
    with pytest.raises(StoreError, match="a/none"):
        copy(steps, "a/none", store)


def test_the_last_step_lasts_and_older_copies_go(store: Store, steps: Store) -> None:
    copies = durable(store, steps)
    saved(steps, 7, 8, 9)
    saved(store, 9, complete=False)  # which a crash left of an earlier attempt
    store.write("checkpoints/9/d/other", b"of another attempt")
    for step in (7, 8, 9):
        copies.end(step)
    assert list_steps(store).complete == (8, 9)
    assert content(store) == {name: value for name, value in content(steps).items() if "/7/" not in name}
    assert json.loads(store.read(NOTE))["step"] == 9


class Recording(FolderStore):
    """A storage that records the order of its writes."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.written: list[str] = []

    def write(self, name: str, content: bytes) -> None:
        self.written.append(name)
        super().write(name, content)


def test_a_copy_is_complete_with_its_last_object(tmp_path: Path) -> None:
    """A kill in between would else leave half a step that counts as complete."""
    store, steps = Recording(tmp_path / "run"), open_store(str(tmp_path / "steps"))
    saved(steps, 5)
    durable(store, steps).end(5)
    written = [name for name in store.written if name.startswith("checkpoints/5/")]
    assert written == ["checkpoints/5/d/data", "checkpoints/5/commit_success.txt"]


def test_a_copy_is_made_once_a_day_whoever_starts_in_between(store: Store, steps: Store) -> None:
    for now in (0.0, 23.9 * 3600, 24 * 3600):
        store.write(NOTE, json.dumps({"step": 1, "time": time.time() - now}).encode())
        copies = durable(store, steps)
        copies.begin()
        saved(steps, 5)
        copies.saved(None)
        copies.saved(5)
        copies.wait()
        assert list_steps(store).complete == ((5,) if now == 24 * 3600 else ())


def test_the_day_begins_with_the_first_start(
    store: Store, steps: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for hour in (0, 10, 20, 30):  # starts again and again, each before a day is over
        monkeypatch.setattr(time, "time", lambda hour=hour: now + hour * 3600)
        copies = durable(store, steps)
        copies.begin()
        saved(steps, 100 + hour)
        copies.saved(100 + hour)
        copies.wait()
    assert list_steps(store).complete == (130,)


def test_a_clock_that_is_set_back_delays_no_copy(
    store: Store, steps: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, moment = durable(store, steps), time.monotonic()
    copies.begin()
    yesterday = time.time() - 86_400
    monkeypatch.setattr(time, "time", lambda: yesterday)
    for hours, complete in ((23.9, ()), (24.1, (5,))):
        monkeypatch.setattr(time, "monotonic", lambda hours=hours: moment + hours * 3600)
        saved(steps, 5)
        copies.saved(5)
        copies.wait()
        assert list_steps(store).complete == complete


def test_a_start_takes_over_what_only_lasted(store: Store, steps: Store) -> None:
    saved(store, 3, 6)
    saved(steps, 5)
    copies = durable(store, steps)
    copies.begin()
    assert list_steps(steps).complete == (5, 6)
    steps.delete("checkpoints/5/commit_success.txt")
    saved(steps, 7)
    copies.begin()
    assert list_steps(steps).complete == (6, 7)
    assert steps.read("config.json") == b"{}"


def test_a_copy_that_fails_is_said_and_ends_nothing(
    store: Store, steps: Store, caplog: pytest.LogCaptureFixture
) -> None:
    copies = durable(store, steps, every_h=0)
    copies.begin()
    copies.saved(4)  # which has been retired since
    copies.wait()
    assert "step 4 isn't copied yet: " in caplog.text
    assert not list_steps(store).complete
    saved(steps, 5)
    copies.saved(5)
    copies.wait()
    assert list_steps(store).complete == (5,)


def test_where_the_two_are_one_nothing_is_copied(store: Store) -> None:
    copies = DurableCopies(store, open_store(store.url), 0, 1)
    saved(store, 4, 5)
    before = content(store)
    copies.begin()
    copies.saved(5)
    copies.end(5)
    assert content(store) == before
    assert store.list("") == sorted(before)


def test_only_runs_of_the_hosts_bucket_save_in_the_other() -> None:
    assert of_steps("gs://bucket/runs/a", HOST) == "gs://bucket-steps/runs/a"
    for url in ("gs://bucket-of-mine/runs/a", "gs://other/runs/a", "/tmp/runs/a"):
        assert of_steps(url, HOST) == url
    assert of_steps("gs://bucket/runs/a", {"CHECKPOINT_BUCKET": "bucket"}) == "gs://bucket/runs/a"


@pytest.mark.slow
def test_a_run_goes_on_from_the_steps_bucket_and_from_what_lasted_without_it(
    storage_url: str, training: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    url = f"{storage_url}/storage/v1/b"
    requests.post(
        f"{url}?project=wire-test", json={"name": "bucket-steps"}, timeout=HANG_S
    ).raise_for_status()
    for name, value in {**HOST, "TENSORSTORE_GCS_HTTP_URL": storage_url}.items():
        monkeypatch.setenv(name, value)

    def output() -> str:
        assert train(command("apart", 8, 2)) == 0
        return capsys.readouterr().out

    run, steps = open_store("gs://bucket/runs/apart"), open_store("gs://bucket-steps/runs/apart")
    output()
    assert list_steps(steps).complete == (4, 6, 8)
    assert list_steps(run).complete == (8,)
    final = run.read("final.json")
    for name in steps.list("checkpoints/8/"):
        steps.delete(name)
    for name in run.list("checkpoints/"):
        run.delete(name)
    assert re.search(r'restore \{"step": 6\}', output())
    assert run.read("final.json") == final
    for name in steps.list(""):
        steps.delete(name)  # the bucket is lost
    assert re.search(r'restore \{"step": 8\}', output())
    assert run.read("final.json") == final
