"""A slice that stands by: hosts as threads on a real storage server, trainers that do what a test says."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.settings import commands
from tests.infra.layers.tpu.boot.metadata import worker as metadata_of
from tests.infra.layers.tpu.boot.storage import client_of
from tests.limits import HANG_S
from tests.workload.slice import SETTINGS
from workload.errors import ConfigError
from workload.host import standby, unit
from workload.host.bucket import Bucket
from workload.host.errors import MetadataError, RunError, StorageError
from workload.host.heartbeat import HANDOFF, Heartbeat
from workload.host.standby import HandOff, Standby

NODE, RUN = "tpu-lab", "train tiny.toml --name r17 --set 'data.path=/mnt/a b'"
WORDS = "train tiny.toml --name r17 --set data.path=/mnt/a b"
HANDED = f"handoff/{NODE}/run.json"
TRAINER = """
import os, pathlib, signal, sys, time
folder, me = pathlib.Path(os.environ["LAB"]), os.environ["TPU_HANDOFF"] + "-" + os.environ["WORKER_ID"]

def note(what):
    with (folder / what).open("a") as file:
        file.write(" ".join([me, *sys.argv[1:]]) + chr(10))

def saved(*_):
    note("saved")
    os._exit(75)

signal.signal(signal.SIGTERM, signal.SIG_IGN if (folder / "stubborn").exists() else saved)
(folder / ("process-" + me)).write_text(str(os.getpid()))
note("started")
while True:
    plan = folder / ("exit-" + me)
    if plan.exists() and (text := plan.read_text()):
        if not text.endswith("always"):
            plan.unlink()
        status = int(text.split()[0])
        os.kill(os.getpid(), -status) if status < 0 else os._exit(status)
    time.sleep(0.02)
"""


class Flaky(Bucket):
    """Out of reach while `down`."""

    down = False

    def read_object(self, name: str) -> tuple[str, bytes] | None:
        if self.down:
            raise StorageError("no answer")
        return super().read_object(name)


class Slice:
    """Its hosts, and what is in the bucket."""

    def __init__(
        self, folder: Path, storage: str, addresses: Sequence[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        self.caplog = caplog
        self.folder, self.storage, self.addresses = folder, storage, addresses
        self.bucket = client_of(storage).bucket("bucket")
        self.hosts: dict[int, Standby] = {}
        self.threads: list[threading.Thread] = []
        self.places = Flaky("bucket", patience_s=5)
        (folder / "trainer.py").write_text(TRAINER)

    @property
    def printed(self) -> list[str]:
        return self.caplog.messages

    def boot(self, *workers: int, barrier: Sequence[str] = standby._BARRIER) -> None:
        for number in workers:
            environment = {
                **os.environ, "CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE, "WORKER_ID": str(number),
                "WORKER_COUNT": str(len(self.addresses)), "COORDINATOR_ADDRESS": "10.0.0.2:8476",
                "GCE_METADATA_HOST": self.addresses[number], "LAB": str(self.folder),
            }  # fmt: skip
            trainer = [sys.executable, str(self.folder / "trainer.py")]
            host = Standby(environment, self.places, NODE, number, 0.1, 0.05, barrier, trainer)
            self.hosts[number] = host
            thread = threading.Thread(target=host.serve, name=f"host-{number}")
            self.threads.append(thread)
            thread.start()

    def stop(self) -> None:
        for host in self.hosts.values():
            host.stop()
        for thread in self.threads:
            thread.join(HANG_S)
            assert not thread.is_alive()

    def hand(self, id_: str = "r17", run: Any = RUN, name: str = HANDED) -> str:
        return self.write(json.dumps({"id": id_, "run": run}), name)

    def write(self, text: str, name: str = HANDED) -> str:
        blob = self.bucket.blob(name)
        blob.upload_from_string(text)
        return str(blob.generation)

    def take_back(self) -> None:
        self.bucket.blob(HANDED).delete()

    def exits(self, worker: int, status: int, id_: str = "r17", how: str = "") -> None:
        (self.folder / f"exit-{id_}-{worker}").write_text(f"{status} {how}")

    def lines(self, what: str) -> list[str]:
        path = self.folder / what
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def started(self, id_: str = "r17") -> list[int]:
        """By worker, how often."""
        names = [line.split()[0] for line in self.lines("started")]
        return [names.count(f"{id_}-{number}") for number in range(len(self.addresses))]

    def ended(self, id_: str = "r17") -> dict[str, Any]:
        blob = self.bucket.get_blob(f"handoff/{NODE}/ended/{id_}.json")
        found: dict[str, Any] = json.loads(blob.download_as_bytes()) if blob else {}
        return found

    def wait(self, happened: Callable[[], object]) -> None:
        give_up = time.monotonic() + HANG_S
        while not happened():
            assert time.monotonic() < give_up, "\n".join(self.printed)
            time.sleep(0.02)


@pytest.fixture
def hosts(
    tmp_path: Path, storage_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Slice]:
    """Two hosts, not booted yet."""
    servers = [metadata_of("bucket", "0" * 64, number, 2).server() for number in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    addresses = [f"127.0.0.1:{server.server_address[1]}" for server in servers]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    monkeypatch.setenv("GCE_METADATA_HOST", addresses[0])
    caplog.set_level(logging.INFO, "workload.host")
    found = Slice(tmp_path, storage_url, addresses, caplog)
    for blob in client_of(storage_url).list_blobs("bucket"):
        if blob.name.startswith(("handoff/", "barrier/", "heartbeats/")):
            blob.delete()
    yield found
    found.stop()
    for server in servers:
        server.shutdown()
        server.server_close()


def idle(slice_: Slice, looks_s: float = 0.6) -> list[str]:
    """What was started after several looks at the bucket."""
    time.sleep(looks_s)
    return slice_.lines("started")


def test_every_host_trains_what_was_handed_over_once(hosts: Slice) -> None:
    generation = hosts.hand()
    hosts.boot(0, 1)
    hosts.wait(lambda: hosts.started() == [1, 1])
    assert hosts.lines("started") == [f"r17-0 {WORDS}", f"r17-1 {WORDS}"], "each word as it was written"
    hosts.exits(1, 0)
    assert idle(hosts) == hosts.lines("started")
    assert hosts.ended() == {}, "worker 0 still trains"
    assert sum("takes r17" in line for line in hosts.printed) == 2, "worker 1 waits for its word"
    hosts.exits(0, 0)
    hosts.wait(hosts.ended)
    assert {
        "id": "r17",
        "generation": generation,
        "state": "done",
        "worker": 0,
    }.items() <= hosts.ended().items()
    hosts.hand()  # a duplicate, by another generation
    assert len(idle(hosts)) == 2
    hosts.hand("r18", "train tiny.toml")
    hosts.wait(lambda: hosts.started("r18") == [1, 1])


def test_no_host_starts_before_all_know_of_it(hosts: Slice) -> None:
    hosts.boot(0)
    hosts.hand()
    hosts.wait(lambda: any("takes r17" in line for line in hosts.printed))
    assert idle(hosts, 2) == []
    hosts.boot(1)
    hosts.wait(lambda: hosts.started() == [1, 1])


def test_a_host_that_waits_for_what_was_replaced_follows_the_others(hosts: Slice) -> None:
    hosts.boot(0)
    hosts.hand("r16")
    hosts.wait(lambda: any("takes r16" in line for line in hosts.printed))
    hosts.hand("r17")
    hosts.boot(1)
    hosts.wait(lambda: hosts.started("r17") == [1, 1])
    assert hosts.started("r16") == [0, 0]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"run": "train tiny.toml"}', '{"id": 7}',
                                  '{"id": "../r1", "run": "train tiny.toml"}', '{"id": "R1"}',
                                  '{"id": "r1/../r2", "run": "train tiny.toml"}'])  # fmt: skip
def test_what_has_no_id_is_refused_and_reported_once(hosts: Slice, text: str) -> None:
    hosts.write(text)
    hosts.boot(0)
    hosts.wait(lambda: hosts.printed)
    assert idle(hosts) == []
    assert [line for line in hosts.printed if "is no hand-off" in line] == hosts.printed
    assert len(hosts.printed) == 1


@pytest.mark.parametrize("run", [
    "bash -c reboot", "trainer", "", 7, None, "train 'open", "train tiny.toml\nreboot", "train " + "x" * 500,
    "standby", "/bin/true",
])  # fmt: skip
def test_what_is_no_training_fails_and_is_never_started(hosts: Slice, run: Any) -> None:
    hosts.hand(run=run)
    hosts.boot(0, barrier=["true"])
    hosts.wait(hosts.ended)
    assert hosts.ended()["state"] == "failed"
    assert hosts.lines("started") == []


def test_a_shells_words_stay_words() -> None:
    assert HandOff.parse("1", json.dumps({"id": "r1", "run": "train $(reboot) ; a"}).encode()).words == (
        "train", "$(reboot)", ";", "a",
    )  # fmt: skip
    with pytest.raises(RunError, match="has no id"):
        HandOff.parse("1", b"{}")
    assert HandOff.parse("7", b'{"id": "r1"}').program == "r1 7", "hosts agree on the object, too"


def test_what_another_slice_was_handed_is_not_ours(hosts: Slice) -> None:
    hosts.hand(name=f"handoff/{NODE}-2/run.json")
    hosts.boot(0, barrier=["true"])
    assert idle(hosts) == []
    assert hosts.printed == []


def test_a_trainer_that_is_killed_is_started_again_on_every_host(hosts: Slice) -> None:
    hosts.hand()
    hosts.boot(0, 1)
    hosts.wait(lambda: hosts.started() == [1, 1])
    hosts.exits(1, -signal.SIGKILL)
    hosts.exits(0, 69)  # as the trainer does where it lost another worker
    hosts.wait(lambda: hosts.started() == [2, 2])
    assert hosts.ended() == {}


def test_settings_that_can_not_work_end_it_on_every_host_and_the_slice_takes_the_next(hosts: Slice) -> None:
    hosts.hand()
    hosts.boot(0, 1)
    hosts.wait(lambda: hosts.started() == [1, 1])
    hosts.exits(0, 69)  # before the other has printed why
    hosts.wait(lambda: any("ended with 69" in line for line in hosts.printed))
    hosts.exits(1, 2)
    hosts.wait(hosts.ended)
    assert {
        "state": "failed",
        "worker": 1,
        "why": "exit status 2; see tpu logs",
    }.items() <= hosts.ended().items()
    assert hosts.started() == [1, 1]
    hosts.hand("r17-1")
    hosts.wait(lambda: hosts.started("r17-1") == [1, 1])


def test_what_fails_again_and_again_ends(hosts: Slice) -> None:
    """E.g. a run that another slice trains: its lease refuses each start."""
    hosts.exits(0, 1, how="always")
    hosts.hand()
    hosts.boot(0, barrier=["true"])
    hosts.wait(hosts.ended)
    assert (hosts.ended()["state"], hosts.started()) == ("failed", [20, 0])
    assert hosts.ended()["why"].startswith("started 20 times")


def test_starts_are_counted_for_each_run_and_within_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(standby.time, "monotonic", lambda: now[0])
    host = Standby({}, Bucket("bucket"), NODE, 0, print)
    first, second = (HandOff("1", id_, ("train",)) for id_ in ("r17", "r18"))
    for one in (first, second, first):  # each has its own starts
        assert all(host._may_start(one) for _ in range(unit.MOST_STARTS))
        assert not host._may_start(one)
    now[0] = unit.WITHIN_S + 1
    assert host._may_start(first), "of an hour ago"


@pytest.mark.parametrize(("answer", "leaves"), [("TRUE", True), ("FALSE", False), (None, False)])
def test_a_machine_that_goes_away_says_so(
    answer: str | None, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(name: str) -> str:
        assert name == "instance/preempted"
        if answer is None:
            raise MetadataError("no answer")
        return answer

    monkeypatch.setattr(standby, "read", read)
    assert standby._preempted() is leaves


@pytest.mark.parametrize("gone", ["CHECKPOINT_BUCKET", "TPU_NAME", "WORKER_ID"])
def test_what_is_no_host_of_a_slice_is_refused(gone: str) -> None:
    host = {"CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE, "WORKER_ID": "0"}
    with pytest.raises(ConfigError, match="a host of a slice has all three"):
        Standby.of_host({**host, gone: ""})


def test_a_trainer_that_does_not_end_is_killed(hosts: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_STOP_S", 0.2)
    (hosts.folder / "stubborn").touch()
    hosts.hand()
    hosts.boot(0, barrier=["true"])
    hosts.wait(lambda: hosts.started()[0])
    process = int((hosts.folder / "process-r17-0").read_text())
    hosts.hand("r18")  # which replaces it
    hosts.wait(lambda: hosts.started("r18")[0])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_what_is_taken_back_saves_and_can_be_handed_over_again(hosts: Slice) -> None:
    hosts.hand()
    hosts.boot(0, 1)
    hosts.wait(lambda: hosts.started() == [1, 1])
    hosts.take_back()
    hosts.wait(lambda: len(hosts.lines("saved")) == 2)
    assert len(idle(hosts)) == 2
    assert hosts.ended() == {}
    hosts.hand()
    hosts.wait(lambda: hosts.started() == [2, 2])


def test_a_slice_recreated_takes_what_has_not_ended_and_nothing_else(hosts: Slice) -> None:
    hosts.hand()
    hosts.boot(0, 1)
    hosts.wait(lambda: hosts.started() == [1, 1])
    hosts.stop()
    assert len(hosts.lines("saved")) == 2, "SIGTERM reaches what trains"
    assert hosts.ended() == {}
    hosts.threads.clear()
    hosts.boot(0, 1)
    hosts.wait(lambda: hosts.started() == [2, 2])
    hosts.exits(0, 0)
    hosts.exits(1, 0)
    hosts.wait(hosts.ended)
    hosts.stop()
    hosts.threads.clear()
    hosts.boot(0, 1)
    assert len(idle(hosts)) == 4


def test_storage_that_is_out_of_reach_ends_nothing(hosts: Slice) -> None:
    hosts.hand()
    hosts.boot(0, barrier=["true"])
    hosts.wait(lambda: hosts.started()[0])
    hosts.places.down = True
    hosts.wait(lambda: hosts.printed.count("standby: no answer") > 2)
    hosts.places.down = False
    hosts.exits(0, 0)
    hosts.wait(hosts.ended)
    assert (hosts.lines("saved"), hosts.started()) == ([], [1, 0])


def test_a_heartbeat_says_that_the_slice_stands_by(hosts: Slice) -> None:
    def why() -> str:
        blob = hosts.bucket.get_blob(f"heartbeats/{NODE}/worker-0")
        return f"{blob.metadata['state']}: {blob.metadata['why']}" if blob else ""

    hosts.boot(0, barrier=["true"])
    hosts.wait(lambda: why() == "running: stands by")
    hosts.hand()
    hosts.wait(lambda: hosts.started()[0])
    assert hosts.hosts[0]._idle is None, "the trainer has a heartbeat of its own"
    hosts.exits(0, 0)
    hosts.wait(lambda: why() == "running: stands by: r17 done")
    hosts.hand()  # once more, where no other host has to be met
    assert idle(hosts) == [f"r17-0 {WORDS}"], "what has ended isn't started again"


@pytest.mark.usefixtures("hosts")
def test_the_end_of_a_hand_off_is_not_that_of_the_slices_job(storage_url: str) -> None:
    host = {"CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE, "WORKER_ID": "0", HANDOFF: "r17"}
    with Heartbeat.of_host(host) as heartbeat:
        give_up = time.monotonic() + HANG_S
        while (
            blob := client_of(storage_url).bucket("bucket").get_blob(f"heartbeats/{NODE}/worker-0")
        ) is None:
            assert time.monotonic() < give_up
        heartbeat.end("done")
        heartbeat._thread.join(HANG_S)
    blob.reload()
    assert (blob.metadata["state"], blob.metadata["why"]) == ("running", "has r17")


def test_its_unit_meets_no_others_before_there_is_something_to_do() -> None:
    text = unit.job_unit("standby")
    assert "ExecStartPre" not in text
    assert 'ExecStart=/opt/tpu/venv/bin/workload "standby"\n' in text
    assert unit.heartbeat_unit("standby") == ""
    assert "ExecStartPre" in unit.job_unit("train tiny.toml")
    assert commands.STANDBY in unit.COMMANDS


def test_a_real_run_continues_from_its_checkpoints_when_the_host_comes_back(
    hosts: Slice, tokens: Path, tmp_path: Path
) -> None:
    """The command and the trainer as they are, of a slice of one host."""
    settings = [f"--set {one}" for one in (*SETTINGS, "train.steps=60", "checkpoint.every_steps=2")]
    server = metadata_of("bucket", "0" * 64, 0, 1).server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu", "CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE,
        "WORKER_ID": "0", "WORKER_COUNT": "1", "COORDINATOR_ADDRESS": "127.0.0.1:8476",
        "GCE_METADATA_HOST": f"127.0.0.1:{server.server_address[1]}", "DATA_DIR": str(tokens),
        "TPU_SKIP_MDS_QUERY": "1",  # by libtpu, where it is installed: this metadata server has no tpu-env
    }  # fmt: skip
    hosts.hand(
        run=f"train tiny.toml --name r17 --dir {tmp_path} {' '.join(settings)} --set train.batch_size=4"
    )
    saves = tmp_path / "runs/r17/checkpoints"

    def boot() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "workload", "standby"], env=environment)

    host = boot()
    try:
        hosts.wait(lambda: (saves / "2/commit_success.txt").exists())
        host.terminate()
        assert host.wait(HANG_S) == 0
        assert hosts.ended() == {}
        host = boot()
        hosts.wait(hosts.ended)
        assert hosts.ended()["state"] == "done"
        host.terminate()
        assert host.wait(HANG_S) == 0
    finally:
        host.kill()
        server.shutdown()
        server.server_close()
    restored = [
        json.loads(path.read_text()) for path in (tmp_path / "runs/r17/events").glob("*-restore.json")
    ]
    assert json.loads((tmp_path / "runs/r17/final.json").read_text())["step"] == 60
    assert restored, "it continued from a checkpoint"
