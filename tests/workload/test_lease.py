"""Of two starts of one run the second is refused while the first lives, and takes over when it doesn't."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workload.errors import TakenError
from workload.runs import lease as leases
from workload.runs.lease import NAME, Lease
from workload.runs.store import FolderStore

EVERY_S, EXPIRES_S = 0.05, 0.5


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "run")


def lease(store: FolderStore, node: str = "", output: list[str] | None = None) -> Lease:
    return Lease(store, node, (output if output is not None else []).append, EVERY_S, EXPIRES_S)


def held(store: FolderStore, **changed: Any) -> dict[str, Any]:
    """Another start's lease, on another machine unless told otherwise."""
    holder = {"start": "holder", "node": "", "host": "far", "boot": "other", "pid": 7, "began": "1"}
    content = {**holder, "written": time.time(), **changed}
    store.write(NAME, json.dumps(content).encode())
    return content


def test_a_run_that_nobody_trains_is_taken_at_once_and_given_back(store: FolderStore) -> None:
    own = lease(store)
    own.take()
    own.check()
    first = json.loads(store.read(NAME))["written"]
    while json.loads(store.read(NAME))["written"] == first:
        time.sleep(EVERY_S)
    own.release()
    assert store.list("") == []


def test_one_that_gives_a_sign_is_not_disturbed(store: FolderStore) -> None:
    over = threading.Event()

    def live() -> None:
        while not over.wait(EVERY_S):
            held(store, node="tpu-a")

    held(store, node="tpu-a")
    threading.Thread(target=live, daemon=True).start()
    output: list[str] = []
    with pytest.raises(
        TakenError, match="process 7 on tpu-a is at work on this run\n    fix: stop it there, or"
    ):
        lease(store, "tpu-b", output).take()
    over.set()
    assert output == [f"process 7 on tpu-a holds this run; waiting {EXPIRES_S:g} s for its renewal"]
    assert json.loads(store.read(NAME))["start"] == "holder"


def test_one_without_a_sign_is_waited_for_and_replaced(store: FolderStore) -> None:
    held(store)
    begun = time.monotonic()
    own = lease(store)
    own.take()
    assert time.monotonic() - begun > EXPIRES_S * 0.5
    own.check()
    own.release()


@pytest.mark.parametrize(
    "changed",
    [
        {"written": time.time() - 60},
        {"node": "tpu-mine"},  # recreated under the same name, or booted again
        {"boot": leases._boot(), "pid": 2**22 + 1, "began": "5"},  # no such process here any more
        {"boot": leases._boot(), "pid": 1, "began": "not when process 1 began"},
    ],
)
def test_one_that_is_known_to_be_over_is_not_waited_for(store: FolderStore, changed: dict[str, Any]) -> None:
    held(store, **changed)
    output: list[str] = []
    own = lease(store, "tpu-mine", output)
    own.take()
    assert output == []
    own.release()


def test_a_living_process_of_this_machine_is_not_over_even_on_the_same_node(store: FolderStore) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    content = held(
        store, node="tpu-mine", boot=leases._boot(), pid=process.pid, began=leases._began(process.pid)
    )
    assert not lease(store, "tpu-mine")._is_over(content)
    process.kill()
    process.wait()
    assert lease(store, "tpu-mine")._is_over(content)


def test_who_was_replaced_hears_of_it_and_leaves_the_lease_alone(store: FolderStore) -> None:
    own = lease(store)
    own.take()
    holder = held(store, node="tpu-b")
    with pytest.raises(TakenError, match="process 7 on tpu-b has taken this run over; this start ends"):
        own.check()
    time.sleep(4 * EVERY_S)
    own.release()
    assert json.loads(store.read(NAME)) == holder


def test_who_stood_still_until_another_had_come_and_gone_takes_nothing_back(store: FolderStore) -> None:
    own = lease(store)
    own.take()
    held(store, node="tpu-b")
    store.delete(NAME)
    with pytest.raises(TakenError, match="the lease of this run is gone: another start took it over"):
        own.check()
    time.sleep(4 * EVERY_S)
    own.release()
    assert store.list("") == []


def test_a_process_of_another_container_is_not_taken_for_one_of_here(store: FolderStore) -> None:
    """Same boot, but process numbers of its own: only a renewed lease, or none, tells."""
    boot = leases._boot().partition(" ")[0]
    content = held(store, boot=f"{boot} pid:[1]", pid=2**22 + 1)
    assert not lease(store)._is_over(content)


@pytest.mark.parametrize("content", [b"3", b"null", b'{"start": "x"}', b"half a lea"])
def test_a_lease_that_is_none_holds_nothing(content: bytes, store: FolderStore) -> None:
    store.write(NAME, content)
    own = lease(store)
    own.take()
    own.check()
    own.release()
