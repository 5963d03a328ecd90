"""The barrier: threads for workers, each with a metadata server of its own, on a real storage server."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits import HANG_S
from tests.served import Received, Reply, serving
from workload.host import barrier, places
from workload.host import metadata as metadata_module
from workload.host.bucket import Bucket
from workload.host.errors import BarrierTimeoutError, MetadataError, StorageError
from workload.host.metadata import HostDescription, read

from .metadata import Metadata, worker
from .storage import BUCKET, client_of

ROOT = Path(__file__).resolve().parents[5]


@pytest.fixture
def metadata(
    gcs: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Metadata]:
    """Metadata and storage of this process: worker 0 of 4."""
    caplog.set_level(logging.INFO, "workload.host")
    own = worker(BUCKET, "0" * 64, 0, 4)
    with serving(own.answer) as address:
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs)
        yield own


class Slice:
    """The workers of one boot of a slice, as threads."""

    def __init__(self, workers: int, timeout_s: float = HANG_S) -> None:
        self.workers, self.timeout_s = workers, timeout_s
        self.passed: dict[int, float] = {}
        self.failed: dict[int, Exception] = {}
        self.threads: dict[int, threading.Thread] = {}

    def start(self, number: int, delay_s: float = 0.0) -> None:
        node = HostDescription("tpu-lab", number, self.workers, BUCKET, self.timeout_s)

        def run() -> None:
            time.sleep(delay_s)
            try:
                barrier.wait(node, "boot", poll_s=0.05)
                self.passed[number] = time.monotonic()
            except Exception as error:
                self.failed[number] = error

        self.threads[number] = threading.Thread(target=run)
        self.threads[number].start()

    def join(self) -> None:
        for thread in self.threads.values():
            thread.join(HANG_S)
            assert not thread.is_alive()


@pytest.mark.usefixtures("metadata")
def test_nobody_passes_before_the_last_one_is_there(caplog: pytest.LogCaptureFixture) -> None:
    boot = Slice(8)
    for number in range(7):
        boot.start(number, delay_s=0.05 * number)
    time.sleep(1.5)
    assert boot.passed == {}
    late = time.monotonic()
    boot.start(7)
    boot.join()
    assert set(boot.passed) == set(range(8))
    assert min(boot.passed.values()) > late
    assert "barrier: waiting for worker 7" in caplog.messages


@pytest.mark.usefixtures("metadata")
def test_what_earlier_boots_left_behind_opens_nothing() -> None:
    """Five boots over the same objects, in any order of arrival; in each the last one is waited for."""
    order = random.Random(5)
    for _ in range(5):
        boot = Slice(4)
        numbers = order.sample(range(4), 4)
        for number in numbers[:3]:
            boot.start(number, order.random() / 4)
        time.sleep(0.8)
        assert boot.passed == {}, f"{numbers[3]} was not there yet"
        boot.start(numbers[3])
        boot.join()
        assert (set(boot.passed), boot.failed) == ({0, 1, 2, 3}, {})


@pytest.mark.usefixtures("metadata")
def test_the_workers_of_a_jobs_slices_meet_and_learn_where_its_first_worker_listens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slices, passed = ("tpu-b-3", "tpu-b-4"), {}

    def arrive(name: str, worker: int) -> None:
        node = HostDescription(name, worker, 2, BUCKET, 20.0, "big", slices)
        word = f"10.0.{slices.index(name)}.{worker}:8476"
        reported = barrier.wait(node, "job", word=word, poll_s=0.05)
        passed[name, worker] = dict(
            line.split("=") for line in places.environment(node, reported).splitlines()
        )

    everybody = [(name, worker) for name in slices for worker in (0, 1)]
    threads = [threading.Thread(target=arrive, args=item) for item in everybody]
    for thread in threads[:-1]:
        thread.start()
    time.sleep(1)
    assert passed == {}
    assert "barrier: waiting for worker 1 of tpu-b-4" in caplog.messages
    threads[-1].start()
    for thread in threads:
        thread.join(HANG_S)
    assert [passed[item]["WORKER_ID"] for item in everybody] == ["0", "1", "2", "3"]
    assert [passed[item]["SLICE_ID"] for item in everybody] == ["0", "0", "1", "1"]
    assert [passed[item]["MEGASCALE_SLICE_ID"] for item in everybody] == ["0", "0", "1", "1"]
    alike = {
        "WORKER_COUNT": "4",
        "SLICE_COUNT": "2",
        "COORDINATOR_ADDRESS": "10.0.0.0:8476",
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.0:8080",
        "MEGASCALE_PORT": "8080",
        "MEGASCALE_NUM_SLICES": "2",
    }
    assert all(alike.items() <= passed[item].items() for item in everybody)


@pytest.mark.usefixtures("metadata")
def test_who_would_run_something_else_is_not_let_in_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    failed = {}

    def arrive(name: str) -> None:
        node = HostDescription(name, 0, 1, BUCKET, 2.0, "mixed", ("a", "b"))
        try:
            barrier.wait(node, "job", program=f"bundle of {name}", poll_s=0.05)
        except BarrierTimeoutError as error:
            failed[name] = str(error)

    threads = [threading.Thread(target=arrive, args=(name,), name=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    for name in "ab":
        messages = [record.getMessage() for record in caplog.records if record.threadName == name]
        assert "worker 0 of b would run another job or bundle: boot all hosts alike" in messages[-1]
    assert "worker 0 of b did not arrive" in failed["a"]
    assert "journalctl --unit=tpu-job" in failed["a"]


@pytest.mark.usefixtures("metadata")
def test_workers_that_there_no_longer_are_are_not_waited_for() -> None:
    """The list of workers of a larger job, left in the bucket."""
    left = {"round": "old", "missing": [4, 5], "go": []}
    Bucket(BUCKET).write_json("barrier/shrunk/job/coordinator", left)
    node = HostDescription("b", 0, 1, BUCKET, 1.0, "shrunk", ("a", "b"))
    with pytest.raises(BarrierTimeoutError, match="worker 0 of a did not arrive"):
        barrier.wait(node, "job", poll_s=0.05)


def test_a_slice_alone_has_its_place_from_its_boot() -> None:
    assert places.environment(HostDescription("tpu-lab", 1, 4, BUCKET, 20.0), "10.0.0.2:8476") == ""


def test_what_is_no_address_never_becomes_a_variable() -> None:
    node = HostDescription("a", 0, 1, BUCKET, 20.0, "big", ("a", "b"))
    with pytest.raises(MetadataError, match="must be ip:port"):
        places.environment(node, "10.0.0.2:8476\nLD_PRELOAD=/tmp/x.so")


@pytest.mark.parametrize("wrong", ["tpu-other", "tpu-lab,tpu-lab", "tpu-lab,x,x"])
def test_slices_without_this_one_once_among_them_are_refused(metadata: Metadata, wrong: str) -> None:
    metadata.set("tpu-slices", wrong)
    with pytest.raises(MetadataError, match="tpu-slices"):
        HostDescription.from_metadata()


@pytest.mark.usefixtures("metadata")
def test_the_missing_are_named_on_every_worker() -> None:
    boot = Slice(4, timeout_s=2)
    for number in (0, 1):
        boot.start(number)
    boot.join()
    assert boot.passed == {}
    for number in (0, 1):
        assert isinstance(boot.failed[number], BarrierTimeoutError)
        assert "workers 2, 3 of 4 did not arrive within 2 s" in str(boot.failed[number])
        assert f"gs://{BUCKET}/boot/tpu-lab/worker-<k>.json" in str(boot.failed[number])


@pytest.mark.parametrize(("phase", "patience_s"), [("boot", 3.0), ("job", 1.0)])
def test_a_boot_waits_as_long_as_another_may_wait_for_its_number_and_then_some(
    phase: barrier.Phase, patience_s: float, metadata: Metadata
) -> None:
    metadata.set("tpu-metadata-timeout-s", "2")
    metadata.set("tpu-barrier-timeout-s", "1")
    begun = time.monotonic()
    with pytest.raises(BarrierTimeoutError, match=f"did not arrive within {patience_s:g} s"):
        barrier.wait(HostDescription.from_metadata(), phase, poll_s=0.05)
    assert time.monotonic() - begun >= patience_s


@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("left_behind", ["nothing", "opened", "waiting"])
def test_a_missing_worker_0_is_named_whatever_it_left_behind(left_behind: str) -> None:
    coordinator = {
        "opened": {"round": "old", "missing": [], "go": ["old-token"]},
        "waiting": {"round": "old", "missing": [1, 2], "go": []},
    }
    if left_behind in coordinator:
        Bucket(BUCKET).write_json("barrier/tpu-lab/boot/coordinator", coordinator[left_behind])
    boot = Slice(3, timeout_s=1)
    boot.start(1)
    boot.join()
    assert "worker 0 of 3 did not arrive" in str(boot.failed[1])


@pytest.mark.usefixtures("metadata")
def test_a_worker_that_starts_again_is_waited_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its first life acknowledged the round and died; its second has another token."""
    boot = Slice(3)
    boot.start(0)
    bucket = Bucket(BUCKET)
    while not (coordinator := bucket.read_json("barrier/tpu-lab/boot/coordinator")):
        time.sleep(0.02)
    bucket.write_json("barrier/tpu-lab/boot/worker-1", {"token": "first", "ack": coordinator["round"]})
    while "barrier: waiting for worker 2" not in caplog.messages:
        time.sleep(0.02)
    boot.start(1)
    time.sleep(0.3)
    boot.start(2)
    boot.join()
    assert set(boot.passed) == {0, 1, 2}


def test_processes_meet_over_the_command_line(gcs: str) -> None:
    with contextlib.ExitStack() as stack:
        running = []
        for number in range(3):
            address = stack.enter_context(serving(worker(BUCKET, "0" * 64, number, 3).answer))
            environment = os.environ | {"GCE_METADATA_HOST": address, "STORAGE_EMULATOR_HOST": gcs}
            command = [sys.executable, "-m", "workload.host", "barrier", "--phase", "job"]
            running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE))
        for process in running:
            _, logged = process.communicate(timeout=HANG_S)
            assert process.returncode == 0
            assert b"barrier: all 3 workers are here" in logged
    names = {blob.name for blob in client_of(gcs).list_blobs(BUCKET)}
    assert names == {f"barrier/tpu-lab/job/{name}" for name in ("coordinator", "worker-1", "worker-2")}


def test_a_host_without_its_number_leads_nobody(metadata: Metadata) -> None:
    assert HostDescription.from_metadata() == HostDescription(
        "tpu-lab", 0, 4, BUCKET, 20.0, metadata_timeout_s=6.0
    )
    for wrong in (None, "", "-1", "4", "²", "1.0"):
        metadata.set("agent-worker-number", wrong)
        with pytest.raises(MetadataError, match="agent-worker-number"):
            HostDescription.from_metadata()


@pytest.mark.parametrize("key", ["tpu-barrier-timeout-s", "tpu-metadata-timeout-s"])
@pytest.mark.parametrize("wrong", ["soon", "0", "-5", "nan", "inf"])
def test_a_bad_timeout_is_refused(metadata: Metadata, key: str, wrong: str) -> None:
    metadata.set(key, wrong)
    with pytest.raises(MetadataError, match=key):
        HostDescription.from_metadata()


def test_the_longest_timeout_that_the_settings_allow_is_taken(metadata: Metadata) -> None:
    metadata.set("tpu-barrier-timeout-s", "86400")
    assert HostDescription.from_metadata().barrier_timeout_s == 86400


def test_a_metadata_server_that_restarts_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(503, 200, 404) as (url, requests):
        monkeypatch.setenv("GCE_METADATA_HOST", url.removeprefix("http://"))
        assert read("instance/id") == '{"round": "r"}'
        assert read("instance/id") is None
    assert len(requests) == 3


def test_a_metadata_server_that_stays_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "_PATIENCE_S", 0.6)
    with answering(503, 503) as (url, requests):
        monkeypatch.setenv("GCE_METADATA_HOST", url.removeprefix("http://"))
        with pytest.raises(MetadataError, match="HTTP 503"):
            read("instance/id")
    assert len(requests) == 2


@contextlib.contextmanager
def answering(*statuses: int) -> Iterator[tuple[str, list[str]]]:
    """Yield a storage server that answers with each status in turn: its URL and the requested paths."""
    requests: list[str] = []

    def answer(request: Received) -> Reply:
        requests.append(request.target)
        return Reply(statuses[len(requests) - 1], {"round": "r"})

    with serving(answer) as address:
        yield f"http://{address}", requests


@pytest.mark.usefixtures("metadata")
def test_what_can_pass_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(503, 429, 401, 200) as (url, requests):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        assert Bucket(BUCKET).read_json("a/b") == {"round": "r"}
    assert requests == [f"/storage/v1/b/{BUCKET}/o/a%2Fb?alt=media"] * 4


@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("statuses", [(403,), (401, 401), (503, 503, 503)])
def test_what_can_not_pass_ends_with_what_the_server_said(
    monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...]
) -> None:
    with answering(*statuses) as (url, requests):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        with pytest.raises(StorageError, match=f"HTTP {statuses[-1]}.*round"):
            Bucket(BUCKET, patience_s=2.0).read_json("a")
    assert len(requests) == len(statuses)


@pytest.mark.usefixtures("metadata")
def test_an_object_that_is_not_ours_is_named(gcs: str) -> None:
    client_of(gcs).bucket(BUCKET).blob("barrier/tpu-lab/boot/coordinator").upload_from_string("[1]")
    with pytest.raises(StorageError, match="coordinator is not a JSON object"):
        Bucket(BUCKET).read_json("barrier/tpu-lab/boot/coordinator")
