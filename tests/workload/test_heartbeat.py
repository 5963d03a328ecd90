"""A worker's word is in the bucket's listing while its job runs, and costs the job nothing."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
import requests

from tests.infra.layers.tpu.boot.metadata import worker
from tests.limits import HANG_S, until
from tests.served import Received, Reply, serving
from tests.virtual_time import replace_time
from tests.workload.extracting import ARCH, make_stream, save_weights
from tests.workload.slice import SETTINGS
from workload.__main__ import main
from workload.host import chips, events
from workload.host import heartbeat as heartbeats
from workload.host.bucket import Bucket
from workload.host.errors import StorageError
from workload.host.heartbeat import Heartbeat

NODE = "tpu-heartbeats"
NAME = f"heartbeats/{NODE}/worker-0"


@pytest.fixture(autouse=True)
def host(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The services of a host, and its environment; no word is in the bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    requests.delete(f"{storage_url}/storage/v1/b/bucket/o/{NAME.replace('/', '%2F')}", timeout=HANG_S)
    for name, value in {"CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE, "WORKER_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    with serving(worker("bucket", "0" * 64).answer) as address:
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        yield monkeypatch


class Attributes:
    """A metadata server that takes guest attributes, and may refuse them."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.count = 0
        self.status = 200
        self.dropped = 0  # of the next writes, without an error
        self._others = worker("bucket", "0" * 64)

    def answer(self, request: Received) -> Reply:
        of_job = request.path == "/computeMetadata/v1/instance/guest-attributes/tpu/job"
        if request.method == "GET" and of_job and self.received:
            return Reply(200, json.dumps(self.received[-1]).encode())
        if request.method != "PUT":
            return self._others.answer(request)
        assert of_job
        assert request.headers["Metadata-Flavor"] == "Google"
        self.count += 1
        if self.dropped:
            self.dropped -= 1
        elif self.status == 200:
            assert b"\n" not in request.body
            self.received.append(json.loads(request.body))
        return Reply(self.status)


@pytest.fixture
def attributes(host: pytest.MonkeyPatch) -> Iterator[Attributes]:
    attributes = Attributes()
    with serving(attributes.answer) as address:
        host.setenv("GCE_METADATA_HOST", address)
        yield attributes


class Listing:
    """A listing of the bucket."""

    def __init__(self, url: str):
        self._url = f"{url}/storage/v1/b/bucket/o"

    def heartbeat(self, name: str = NAME) -> dict[str, str]:
        """The metadata of a word; empty where there is none."""
        answer = requests.get(self._url, {"prefix": "heartbeats/"}, timeout=HANG_S).json()
        metadata = next((item["metadata"] for item in answer.get("items", ()) if item["name"] == name), {})
        return {key: value for key, value in metadata.items() if key != "began_s"}

    def content(self) -> dict[str, Any]:
        url = f"{self._url}/{NAME.replace('/', '%2F')}?alt=media"
        result: dict[str, Any] = requests.get(url, timeout=HANG_S).json()
        return result

    def until(self, **expected: str) -> dict[str, str]:
        give_up = time.monotonic() + HANG_S
        while not expected.items() <= (heartbeat := self.heartbeat()).items():
            assert time.monotonic() < give_up, heartbeat
            time.sleep(0.02)
        return heartbeat


@pytest.fixture
def listing(storage_url: str) -> Listing:
    return Listing(storage_url)


class Counted(Bucket):
    """A bucket that notes when it is written to, and that may refuse."""

    def __init__(self, name: str = "bucket") -> None:
        super().__init__(name, patience_s=0.1)
        self.written: list[tuple[float, dict[str, Any]]] = []
        self.refuses = False

    def write_json(self, name: str, value: dict[str, Any], *arguments: Any) -> None:
        if self.refuses:
            raise StorageError("HTTP 403: no")
        super().write_json(name, value, *arguments)
        self.written.append((time.monotonic(), value))


def test_a_listing_says_how_far_a_worker_is_and_how_it_ended(listing: Listing) -> None:
    with Heartbeat(Bucket("bucket"), NODE, 0, 0.05, 0.1) as heartbeat:
        assert listing.until(state="running") == {"state": "running", "instance": "4711"}
        heartbeat.report(run="gs://bucket/extractions/one", samples=3, of_samples=10)
        heartbeat.report(samples=4, shards=1, size_bytes=10**12)
        assert listing.until(samples="4", size_bytes="1000000000000")["state"] == "running"
        heartbeat.end("done")
    output = listing.heartbeat()
    assert output == {
        "state": "done",
        "instance": "4711",
        "run": "gs://bucket/extractions/one",
        "samples": "4",
        "of_samples": "10",
        "shards": "1",
        "size_bytes": "1000000000000",
    }
    content = listing.content()
    assert {key: str(content[key]) for key in output} == output
    assert (content["node"], content["worker"], content["samples"]) == (NODE, 0, 4)


def test_one_that_fails_says_so_and_one_that_is_left_says_no_more(listing: Listing) -> None:
    with pytest.raises(ValueError, match="no good"), Heartbeat(Bucket("bucket"), NODE, 0, 5, 5):
        raise ValueError("no good")
    assert listing.heartbeat() == {"state": "failed", "why": "no good", "instance": "4711"}
    with Heartbeat(Bucket("bucket"), NODE, 0, 5, 5) as heartbeat:
        listing.until(state="running")
        heartbeat.report(samples=2)
        heartbeat.end(None)
    with pytest.raises(KeyboardInterrupt), Heartbeat(None):
        raise KeyboardInterrupt
    time.sleep(0.3)
    assert listing.heartbeat() == {"state": "running", "instance": "4711"}


def test_why_it_failed_is_one_line_that_is_not_long(listing: Listing) -> None:
    with pytest.raises(ValueError, match="first"), Heartbeat(Bucket("bucket"), NODE, 0, 5, 5):
        raise ValueError("first\n    fix: " + "more " * 100)
    assert listing.heartbeat()["why"].startswith("first fix: more more")
    assert len(listing.heartbeat()["why"]) == 200


def test_a_full_disk_is_said_as_long_as_it_is_full(listing: Listing, host: pytest.MonkeyPatch) -> None:
    free_bytes = [1000]
    host.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free_bytes[0]))
    with Heartbeat(Bucket("bucket"), NODE, 0, 0.05, 0.1) as heartbeat:
        assert listing.until(disk="full")["state"] == "running"
        free_bytes[0] = 1 << 30
        heartbeat.report(samples=1)
        assert "disk" not in listing.until(samples="1")
        free_bytes[0] = 0
        heartbeat.end("failed", OSError(28, "No space left on device"))
    assert listing.heartbeat()["disk"] == "full"
    assert listing.heartbeat()["why"] == "[Errno 28] No space left on device"


def test_it_is_written_seldom_while_much_is_new_and_goes_on_while_nothing_is(listing: Listing) -> None:
    bucket = Counted()
    with Heartbeat(bucket, NODE, 0, 0.4, 0.8) as heartbeat:
        for samples in range(100):
            heartbeat.report(samples=samples)
            time.sleep(0.01)
        busy = len(bucket.written)
        assert 2 <= busy < 50
        listing.until(samples="99")
        busy = len(bucket.written)
        while len(bucket.written) < busy + 3:
            time.sleep(0.05)
    times = [when for when, _ in bucket.written]
    assert all(later - earlier > 0.35 for earlier, later in pairwise(times))
    assert all(later - earlier > 0.7 for earlier, later in pairwise(times[busy : busy + 3]))


def test_a_bucket_that_refuses_is_said_once_and_tried_again(
    listing: Listing, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Counted()
    bucket.refuses = True
    with Heartbeat(bucket, NODE, 0, 0.05, 0.05) as heartbeat:
        heartbeat.report(samples=1)
        time.sleep(0.5)
        assert caplog.messages == [f"{NAME} not written, will retry: HTTP 403: no"]
        bucket.refuses = False
        listing.until(samples="1")
        bucket.refuses = True
        heartbeat.end("done")
    assert len(caplog.messages) == 2


def test_a_host_without_its_servers_works_all_the_same(
    host: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host.setattr("workload.host.metadata._PATIENCE_S", 0.5)
    with serving(lambda _: b"what?\n") as address:
        host.setenv("GCE_METADATA_HOST", address)
        with Heartbeat.of_host(
            {"CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE, "WORKER_ID": "0"}
        ) as heartbeat:
            heartbeat.report(samples=1)
            heartbeat.end("done")
    assert f"{NAME} not written, will retry: http://127.0.0.1" in caplog.text


def test_the_machines_own_attribute_says_the_same_at_the_same_moments(attributes: Attributes) -> None:
    bucket = Counted()
    began_s = int(time.time())
    with Heartbeat(bucket, NODE, 0, 0.05, 0.1, command="0123456789ab") as heartbeat:
        for samples in range(3):
            heartbeat.report(samples=samples)
            time.sleep(0.1)
        heartbeat.report(final=1)
        heartbeat.end("failed", ValueError("no good"))
    assert len(attributes.received) == len(bucket.written) >= 3
    assert [entry["state"] for entry in attributes.received] == [
        entry["state"] for _, entry in bucket.written
    ]
    first, last = attributes.received[0], attributes.received[-1]
    assert began_s <= first.pop("updated_s") <= last.pop("updated_s") <= time.time() + 1
    assert first == {"state": "running", "command": "0123456789ab", "why": "", "final": False}
    assert last == {"state": "failed", "command": "0123456789ab", "why": "no good", "final": True}


@pytest.mark.parametrize(
    ("state", "final", "dropped", "writes"),
    [("done", 0, 1, 2), ("done", 0, 0, 1), ("failed", 1, 1, 2), ("failed", 1, 0, 1), ("failed", 0, 1, 1)],
)
def test_an_end_for_good_whose_attribute_google_drops_is_written_again_when_it_takes_more(
    state: Literal["done", "failed"],
    final: int,
    dropped: int,
    writes: int,
    attributes: Attributes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that failed on many starts has used the machine's ten queries a minute."""
    monkeypatch.setattr(heartbeats, "_QUOTA_S", 0.0)
    with Heartbeat(Counted(), NODE, 0) as heartbeat:
        heartbeat.end("failed", ValueError("an earlier start"))
    with Heartbeat(Counted(), NODE, 0) as heartbeat:
        until(lambda: attributes.received[-1]["state"] == "running")
        attributes.dropped, before = dropped, attributes.count
        heartbeat.report(final=final)
        heartbeat.end(state, ValueError("no good"))
    assert attributes.count - before == writes
    last = attributes.received[-1]
    written = (state, bool(final)) if writes > dropped else ("running", False)
    assert (last["state"], last["final"]) == written


def test_the_start_of_a_job_is_reported_and_stays_the_same(listing: Listing) -> None:
    bucket = Counted()
    with Heartbeat(bucket, NODE, 0, began_s=1000.25) as heartbeat:
        heartbeat.end("done")
    assert {metadata["began_s"] for _, metadata in bucket.written} == {"1000.250"}


def test_where_no_attribute_can_be_written_one_failure_is_enough(
    attributes: Attributes, listing: Listing, caplog: pytest.LogCaptureFixture
) -> None:
    attributes.status = 403  # as where the node's metadata doesn't enable them
    with Heartbeat(Bucket("bucket"), NODE, 0, 0.05, 0.05) as heartbeat:
        listing.until(state="running")
        heartbeat.report(samples=1)
        listing.until(samples="1")
        heartbeat.end("done")
    assert (attributes.count, caplog.messages) == (1, [])


def test_an_attribute_that_was_written_before_is_tried_again(attributes: Attributes) -> None:
    with Heartbeat(Counted(), NODE, 0, 0.05, 0.05) as heartbeat:
        give_up = time.monotonic() + HANG_S
        for status in (200, 503, 200):
            attributes.status, before = status, attributes.count
            while attributes.count < before + 2:
                assert time.monotonic() < give_up
                time.sleep(0.02)
        heartbeat.end("done")
    assert attributes.received[-1]["state"] == "done"


@pytest.mark.parametrize("missing", ["CHECKPOINT_BUCKET", "TPU_NAME", "WORKER_ID", ""])
def test_who_is_no_worker_says_nothing(missing: str, listing: Listing) -> None:
    environment = {"CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE, "WORKER_ID": "0"}
    if missing:
        del environment[missing]
    else:
        environment["SLURM_PROCID"] = "0"  # its host's heartbeat is slurmd's
    threads = threading.active_count()
    with Heartbeat.of_host(environment) as heartbeat:
        assert threading.active_count() == threads
        heartbeat.report(samples=1)
        heartbeat.end("done")
    assert listing.heartbeat() == {}


def test_a_worker_of_several_slices_has_its_number_in_its_node(listing: Listing) -> None:
    """As in boot/: worker 6 of 8, of two slices, is worker 2 of the second."""
    host = {"CHECKPOINT_BUCKET": "bucket", "TPU_NAME": NODE, "WORKER_ID": "6", "WORKER_COUNT": "8"}
    with Heartbeat.of_host(
        {**host, "SLICE_COUNT": "2", "SLICE_ID": "1", "TPU_COMMAND": "0123456789ab"}
    ) as heartbeat:
        heartbeat.end("done")
    output = listing.heartbeat(f"heartbeats/{NODE}/worker-2")
    assert (output["state"], output["command"]) == ("done", "0123456789ab")


def test_an_extraction_says_what_is_committed(listing: Listing, tmp_path: Path) -> None:
    weights = save_weights(tmp_path / "weights", ARCH)
    (tmp_path / "mine.toml").write_text(
        f'[model]\nweights = "{weights}"\n[extract]\npoints = ["mlp_out.0"]\nshard_bytes = 1\n'
    )
    (tmp_path / "stream_003.safetensors").write_bytes(make_stream([5, 60, 33]))
    line = ["extract", str(tmp_path / "mine.toml"), "--stream", str(tmp_path / "stream_003.safetensors")]
    line += ["--dir", str(tmp_path / "out")]
    assert main(line) == 0
    shards = list((tmp_path / "out").rglob("shard_*.safetensors"))
    expected = {
        "state": "done",
        "run": str(tmp_path / "out/extractions/mine"),
        "samples": "3",
        "of_samples": "3",
        "shards": str(len(shards)),
        "size_bytes": str(sum(path.stat().st_size for path in shards)),
        "instance": "4711",
    }
    assert listing.heartbeat() == expected
    assert main(line) == 0  # which finds all of it there
    assert listing.heartbeat() == expected
    assert main([*line, "--set", "extract.points=[]"]) == 2
    assert listing.heartbeat()["state"] == "failed"


@pytest.mark.slow
def test_a_training_says_its_steps(
    listing: Listing, tokens: Path, tmp_path: Path, host: pytest.MonkeyPatch
) -> None:
    host.setenv("DATA_DIR", str(tokens))
    # Goodput counts from the process's start, and this one may have run other tests for minutes.
    host.setattr("workload.train.launch._process_age_s", lambda: 0.0)
    settings = (*SETTINGS, "train.steps=3", "optimizer.warmup_steps=1")
    line = ["train", "tiny.toml", "--name", "worded", "--dir", str(tmp_path)]

    def train(*more: str) -> int:
        words = [*line, *(f"--set={setting}" for setting in (*settings, *more))]
        return main(words)

    assert train() == 0
    expected = {"run": str(tmp_path / "runs/worded"), "samples": "3", "of_samples": "3", "instance": "4711"}
    done = listing.heartbeat()
    assert 0 < float(done.pop("loss")) < 10
    assert 0 < float(done.pop("goodput")) < 1
    assert done == {"state": "done", **expected}
    assert train("model.d_ff=96") == 2  # another run of this name
    heartbeat = listing.heartbeat()
    assert "worded" in heartbeat.pop("why")
    assert heartbeat == {"state": "failed", "run": expected["run"], "instance": "4711"}


def test_the_event_has_the_age_of_step_and_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    replace_time(monkeypatch, "monotonic", lambda: now[0])
    heartbeat = Heartbeat(None, NODE, 3, probe=lambda: {"duty_cycle_percent": 80.0})
    heartbeat.print_event("running")
    heartbeat.report(samples=1)
    heartbeat.saved()
    now[0] = 160.0
    heartbeat.report(samples=2)
    now[0] = 190.0
    heartbeat.report(samples=2)  # no step
    heartbeat.measure(loss=2.5)
    heartbeat.print_event("running")
    first, second = (events.payload(line) for line in capsys.readouterr().out.splitlines())
    assert first is not None
    assert second is not None
    assert "step_age_s" not in first
    del second["message"]
    assert second == {
        "event": "heartbeat", "state": "running", "worker": 3, "samples": 2, "loss": 2.5,
        "step_age_s": 30.0, "checkpoint_age_s": 90.0, "duty_cycle_percent": 80.0,
    }  # fmt: skip


class Monitoring:
    """As https://cloud.google.com/tpu/docs/tpu-monitoring-library describes libtpu's."""

    def __init__(self, **data: list[str]) -> None:
        self.data = data

    def get_metric(self, name: str) -> Any:
        return SimpleNamespace(data=lambda: self.data[name])


def test_chips_are_read_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chips.readings() == {}, "no libtpu here"
    result = Monitoring(
        duty_cycle_pct=["80.0", "90.0"], hbm_capacity_usage=["10", "20"], hbm_capacity_total=["40", "40"]
    )
    monkeypatch.setitem(sys.modules, "libtpu", ModuleType("libtpu"))
    monkeypatch.setitem(sys.modules, "libtpu.sdk", SimpleNamespace(tpumonitoring=result))
    assert chips.readings() == {"duty_cycle_percent": 85.0, "hbm_percent": 37.5}
    result.data = {"hbm_capacity_usage": [], "hbm_capacity_total": []}  # no program runs
    assert chips.readings() == {}
