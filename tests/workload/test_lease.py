"""Of two starts of one run the second is refused while the first lives, and takes over when it doesn't."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workload.errors import TakenError
from workload.runs.lease import NAME, Lease
from workload.runs.store import FolderStore

EVERY_S, EXPIRES_S = 0.05, 0.5
WAITS = f"waiting {EXPIRES_S:g} s for its renewal"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "run")


def lease(store: FolderStore, node: str = "", output: list[str] | None = None) -> Lease:
    return Lease(store, node, (output if output is not None else []).append, EVERY_S, EXPIRES_S)


def written(store: FolderStore) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(store.read(NAME))
    return content


def held(store: FolderStore, **changed: Any) -> dict[str, Any]:
    """Another start's lease, on another machine unless changed."""
    holder = {"start": "holder", "node": "", "host": "far", "boot": "other", "pid": 7, "began": "1"}
    content = {**holder, "written": time.time(), **changed}
    store.write(NAME, json.dumps(content).encode())
    return content


def held_here(store: FolderStore, **changed: Any) -> dict[str, Any]:
    """Another start's lease, of this process unless changed."""
    with lease(store):
        own = written(store)
    return held(store, **{**own, "start": "holder", **changed})


def taken(store: FolderStore, node: str = "tpu-mine") -> list[str]:
    """Take the lease; return the lines before a wait."""
    output: list[str] = []
    with lease(store, node, output) as own:
        own.check()
    return output


def test_a_run_that_nobody_trains_is_taken_at_once_and_given_back(store: FolderStore) -> None:
    with lease(store) as own:
        own.check()
        first = written(store)["written"]
        while written(store)["written"] == first:
            time.sleep(EVERY_S)
    assert store.list("") == []


def test_a_holder_that_renews_its_lease_is_not_disturbed(store: FolderStore) -> None:
    over = threading.Event()

    def live() -> None:
        while not over.wait(EVERY_S):
            held(store, node="tpu-a")

    held(store, node="tpu-a")
    threading.Thread(target=live, daemon=True).start()
    output: list[str] = []
    at_work = "process 7 on tpu-a is at work on this run\n    fix: stop it there, or"
    with pytest.raises(TakenError, match=at_work):
        lease(store, "tpu-b", output).take()
    over.set()
    assert output == [f"process 7 on tpu-a holds this run; {WAITS}"]
    assert written(store)["start"] == "holder"


def test_a_holder_that_does_not_renew_its_lease_is_waited_for_and_replaced(store: FolderStore) -> None:
    held(store)
    begun = time.monotonic()
    assert taken(store) == [f"process 7 on far holds this run; {WAITS}"]
    assert time.monotonic() - begun > EXPIRES_S * 0.5


def test_a_holder_whose_node_was_recreated_is_not_waited_for(store: FolderStore) -> None:
    held(store, node="tpu-mine")
    assert taken(store) == []


def test_a_holder_that_expired_is_waited_for_two_renewals(store: FolderStore) -> None:
    held(store, written=time.time() - 60)
    assert taken(store) == [f"process 7 on far holds this run; waiting {2 * EVERY_S:g} s for its renewal"]


class Renewing(FolderStore):
    """A folder whose lease has been renewed at each read since the one before."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        raw = super().read(name, start, end)
        content = json.loads(raw)
        self.write(name, json.dumps({**content, "written": content["written"] + EVERY_S}).encode())
        return raw


def test_a_holder_whose_clock_is_a_day_behind_is_not_disturbed(tmp_path: Path) -> None:
    store = Renewing(tmp_path / "run")
    held(store, written=time.time() - 86_400)
    with pytest.raises(TakenError, match="process 7 on far is at work on this run"):
        lease(store).take()
    assert written(store)["start"] == "holder"


@pytest.mark.parametrize("changed", [{}, {"pid": 2**22 + 1}, {"pid": 1}, {"began": "another time"}])
def test_a_holder_that_is_this_process_or_ended_here_is_not_waited_for(
    store: FolderStore, changed: dict[str, Any]
) -> None:
    held_here(store, **changed)
    assert taken(store) == []


def test_a_living_process_of_this_machine_is_waited_for_even_on_the_same_node(store: FolderStore) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        holder = {"node": "tpu-mine", "pid": process.pid, "began": began}
        held_here(store, **holder)
        assert WAITS in "".join(taken(store))
        process.kill()
        process.wait()
        held_here(store, **holder)
        assert taken(store) == []


def test_a_process_of_another_container_is_not_taken_for_one_of_here(store: FolderStore) -> None:
    """Same boot, but process numbers of its own: only a renewed lease, or none, shows its end."""
    boot = held_here(store)["boot"].partition(" ")[0]
    held_here(store, boot=f"{boot} pid:[1]", pid=os.getpid())
    assert WAITS in "".join(taken(store))


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (False, "process 7 on tpu-b has taken this run over; this start ends"),
        (True, "the lease of this run is gone: another start took it over"),
    ],
)
def test_a_start_that_was_replaced_ends_and_takes_nothing_back(
    gone: bool, message: str, store: FolderStore
) -> None:
    own = lease(store)
    own.take()
    holder = held(store, node="tpu-b")
    if gone:  # the other start has ended meanwhile
        store.delete(NAME)
    with pytest.raises(TakenError, match=message):
        own.check()
    time.sleep(4 * EVERY_S)
    own.release()
    assert store.list("") == ([] if gone else [NAME])
    assert gone or written(store) == holder


@pytest.mark.parametrize("content", [b"3", b"null", b'{"start": "x"}', b"half a lea"])
def test_a_damaged_lease_holds_nothing(content: bytes, store: FolderStore) -> None:
    store.write(NAME, content)
    assert taken(store) == []
