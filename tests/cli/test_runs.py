"""`tpu runs` on the emulated Cloud Storage, with runs as the trainer's own writers leave them."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from cli import runs
from cli.__main__ import main
from cli.stored_runs import Runs
from infra.google.client import Client
from tests.emulated import EVERY_API, Emulated, Session
from tests.infra.recording import BASE, parsed
from tests.rehearsal.cloud.storage.storage_front import unhurried
from workload.runs.goodput import GoodputRecorder
from workload.runs.step_log import StepLog
from workload.runs.store import FolderStore

BUCKET, PROJECT = BASE["storage:bucketName"], BASE["gcp:project"]
OBJECTS = f"storage.googleapis.com/storage/v1/b/{BUCKET}/o"


def record(batch: int, steps: int, width: int = 64, chip: str = "TPU v6 lite") -> dict[str, Any]:
    return {
        "exact": {
            "model": {"d_model": width}, "data": {"sequence_length": 128},
            "train": {"batch_size": batch, "steps": steps},
        },
        "rounding": {"mesh": {"data": 1, "fsdp": 16}, "chip": chip, "slices": 1},
    }  # fmt: skip


def trained(
    store: FolderStore, run: str, node: str, first: int, last: int, state: str, number: int = 0,
    best: tuple[int, float] | None = None, rented: Mapping[str, str] = {},
) -> None:  # fmt: skip
    """Do what a start of the trainer writes: an hour, of which the steps take three quarters."""
    clock = iter([0.0, 3600.0])
    goodput = GoodputRecorder(0.0, lambda: next(clock, 3600.0), lambda: time.time() - 3600.0)
    goodput.number, goodput.seconds["step"] = number, 2700.0
    goodput.begin(first)
    log = StepLog(store, run, node, 40, rented=rented)
    log.best = lambda: best
    log.begin(first)
    for step in range(first + 1, last + 1):
        numbers = {
            "learning_rate": 1e-3 / step, "gradient_norm": 1.0 + 1 / step, "step_s": 0.5,
            "tokens_per_s_per_chip": 1000.0, "left_s": (40 - step) * 90.0,
        }  # fmt: skip
        log.loss(step, 10.0 - step / 10, numbers)
        goodput.did(step)
    log.evaluated(last, 9.5)
    log.flush(last)
    log.goodput(goodput)
    if state == "preempted":
        log.event("preempted", step=last - 1, lost_steps=1)
    log.end(state, last, 10.0 - last / 10)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    emulated = Emulated(tmp_path_factory.mktemp("cloud"), PROJECT, enabled_apis=EVERY_API)
    emulated.cloud.storage.limit.now = unhurried
    yield emulated
    emulated.close()


@pytest.fixture
def session(cloud: Emulated, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The commands' requests; the bucket is new and empty."""
    bucket = f"storage.googleapis.com/storage/v1/b/{BUCKET}"
    for item in cloud.request("GET", OBJECTS).json.get("items", ()):
        cloud.request("DELETE", f"{OBJECTS}/{quote(item['name'], safe='')}")
    cloud.request("DELETE", bucket)
    created = cloud.request(
        "POST", f"storage.googleapis.com/storage/v1/b?project={PROJECT}", {"name": BUCKET}
    )
    assert created.status == 200, created.body
    session, settings = Session(cloud), parsed(BASE)
    monkeypatch.setattr("cli.runs.from_file", lambda *_: settings)
    monkeypatch.setattr("cli.runs._stored", lambda given: Runs(given, Client(PROJECT, session)))
    return session


class Bucket:
    """The bucket, with runs made in a folder first."""

    def __init__(self, cloud: Emulated, folder: Path):
        self.cloud, self.folder = cloud, folder

    def put(
        self, run: str, *starts: tuple[int, int, str], node: str = "train",
        best: tuple[int, float] | None = None, rented: Mapping[str, str] = {}, **more: Any,
    ) -> None:  # fmt: skip
        root = self.folder / run
        store = FolderStore(root)
        store.write("config.json", json.dumps(record(8, 40, **more)).encode())
        with redirect_stdout(io.StringIO()):
            for number, (first, last, state) in enumerate(starts):
                trained(store, run, node, first, last, state, number, best, rented)
        for path in (path for path in root.rglob("*") if path.is_file()):
            self.write(f"runs/{run}/{path.relative_to(root).as_posix()}", path.read_bytes())

    def write(self, name: str, content: bytes) -> None:
        named = f"uploadType=media&name={quote(name, safe='')}"
        url = f"storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o?{named}"
        assert self.cloud.request("POST", url, content).status == 200

    def remove(self, prefix: str) -> None:
        for item in self.cloud.request("GET", f"{OBJECTS}?prefix={prefix}").json.get("items", ()):
            self.cloud.request("DELETE", f"{OBJECTS}/{quote(item['name'], safe='')}")


@pytest.fixture
def bucket(cloud: Emulated, session: Session, tmp_path: Path) -> Bucket:
    return Bucket(cloud, tmp_path / "made")


def text_of(page: str) -> str:
    return re.sub(
        r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<svg.*?</svg>", "", page, flags=re.S)))
    )


def test_runs_are_listed_with_state_step_loss_speed_goodput_and_cost(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put("tiny", (0, 20, "preempted"), (19, 40, "done"))
    bucket.put("other", (0, 10, "running"), node="gpu", chip="NVIDIA H200")
    bucket.write("runs/held/config.json", json.dumps(record(8, 40)).encode())
    bucket.write("runs/held/lease.json", json.dumps({"written": time.time()}).encode())
    bucket.write("runs/no-run/tensorboard/events", b"")
    assert main(["runs", "dev"]) == 0
    head, *lines, of_run = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "step", "loss", "tokens/s", "goodput/run", "cost/run", "written"]
    assert of_run.startswith("/run: of all starts, by the run's clock; tpu status has the last start")
    rows = {line.split()[0]: re.split(r"  +", line) for line in lines}
    assert [*rows] == ["other", "tiny", "held"], "the newest first; a folder without a run is left out"
    assert rows["tiny"][1:6] == ["done", "40 of 40", "6", "16,000", "73.1%"]
    assert rows["other"][1:3] == ["silent", "10 of 40"], "it says running, and no start holds it"
    assert rows["other"][6] == "unknown"
    assert rows["held"][1:3] == ["starting", "0 of 40"]


def test_a_run_that_recorded_its_slice_has_that_ones_price_and_else_at_most_its_price_on_demand(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put("z", (0, 20, "preempted"))
    pod = {"accelerator": "v6e-16", "zone": "us-east5-b"}
    bucket.put("y", (0, 20, "preempted"), node="vision-y", chip="cpu", rented={**pod, "provisioning": "spot"})
    bucket.put("x", (0, 20, "preempted"), node="vision-x", chip="cpu", rented=pod)
    reserved = {**pod, "provisioning": "reservation"}
    bucket.put("w", (0, 20, "preempted"), node="vision-w", chip="cpu", rented=reserved)
    assert main(["runs", "dev", "--json"]) == 0
    of_node, spot, any_way, reservation = sorted(
        json.loads(capsys.readouterr().out), key=lambda run: run["run"], reverse=True
    )
    assert (spot["paid"], spot["dollars"]) == ("spot, us-east5-b", pytest.approx(of_node["dollars"]))
    assert spot["predicted_dollars"] == pytest.approx(of_node["predicted_dollars"])
    assert any_way["paid"] == "at most: on demand, us-east5-b"
    assert any_way["dollars"] > spot["dollars"]
    assert (reservation["paid"], reservation["dollars"]) == ("reservation, us-east5-b", None)


def test_a_list_for_programs_has_prices_by_the_slices_of_the_settings(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put("known", (0, 20, "preempted"), best=(20, 9.5))
    bucket.put("fleet", (0, 20, "preempted"), node="tpu-us-east5-b-3")
    assert main(["runs", "dev", "--json"]) == 0
    known, fleet = sorted(json.loads(capsys.readouterr().out), key=lambda run: run["run"], reverse=True)
    assert known["paid"] == "spot, us-east5-b"
    assert fleet["paid"] == "at most: on demand, us-east5-b"
    assert 0 < known["dollars"] < fleet["dollars"]
    # 20 steps of 90 s are left, at a goodput of three quarters: 40 minutes of the same price an hour.
    assert known["predicted_dollars"] == pytest.approx(known["dollars"] * (1 + 1800 / 0.75 / 3600))
    assert [(run["best"], run["best_loss"]) for run in (known, fleet)] == [(20, 9.5), (None, None)]
    assert main(["runs", "list", "dev"]) == 0
    listed = capsys.readouterr().out
    assert "≤ $" in listed
    assert listed.split()[4] == "best"
    assert "20 (9.5)" in listed


def test_a_page_has_curves_marks_time_price_settings_and_links(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put("tiny", (0, 20, "preempted"), (19, 30, "failed"), (30, 40, "done"), best=(30, 9.25))
    bucket.write("runs/tiny/profile/worker-0/trace", b"")
    out = tmp_path / "pages" / "tiny.html"
    assert main(["runs", "show", "dev", "tiny", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out} is written\n"
    page = out.read_text()
    drawn = re.findall(r'role="img" aria-label="([^"]+)"', page)
    assert drawn == ["loss by step", "learning rate by step", "gradient norm by step", "tokens/s by step"]
    text = text_of(page)
    for part in (
        "state done", "step 40 of 40", "validation loss 9.5", "best step 30 (9.25)",
        "tokens/s 16,000", "price: spot, us-east5-b",
        "19 preempted steps to do again: 1", "19 restart",
        "30 restart the start before ended without notice",
        "d_model 64", "tpu logs dev train", f"xprof --logdir gs://{BUCKET}/runs/tiny/profile",
        f"workload checkpoints list gs://{BUCKET}/runs/tiny", "goodput, all starts", "price of its starts",
        "steps that a later start did again",
    ):  # fmt: skip
        assert part in text, part
    assert "console.cloud.google.com/logs" in page
    assert "http-equiv" not in page, "it isn't read again"


def test_two_runs_of_different_models_are_drawn_over_one_another_by_step_and_by_tokens(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.put("tiny", (0, 40, "done"))
    bucket.put("wide", (0, 40, "done"), width=256, best=(40, 9.5))
    out = tmp_path / "both.html"
    assert main(["runs", "show", "dev", "tiny", "wide", "--out", str(out)]) == 0
    page = out.read_text()
    drawn = re.findall(r'role="img" aria-label="([^"]+)"', page)
    assert drawn[:2] == ["loss by step", "loss by tokens"]
    assert "wide validation" in page
    assert '<tr class="warn"><td>model.<wbr>d_model</td><td>64</td><td>256</td></tr>' in page
    assert page.index(".<wbr>d_model") < page.index(".<wbr>steps"), "settings that differ come first"
    assert "best step – 40 (9.5)" in text_of(page)


def test_a_followed_page_is_written_again_until_the_run_ends(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put("tiny", (0, 20, "preempted"))
    out, seen = tmp_path / "tiny.html", []

    def pause(seconds: float) -> None:
        seen.append((seconds, text_of(out.read_text()), out.read_text().count('http-equiv="refresh"')))
        bucket.remove("runs/tiny/")
        bucket.put("tiny", (0, 20, "preempted"), (20, 40, "done"))

    monkeypatch.setattr(runs, "sleep", pause)
    assert main(["runs", "show", "dev", "tiny", "--follow", "--out", str(out)]) == 0
    end = f"tiny: done; next: workload checkpoints list gs://{BUCKET}/runs/tiny\n"
    assert capsys.readouterr().out.endswith(end)
    ((seconds, text, refreshes),) = seen
    assert (seconds, refreshes) == (30, 1)
    assert "step 20 of 40" in text
    assert "step 40 of 40" in text_of(out.read_text())
    assert "http-equiv" not in out.read_text()


def test_a_run_that_is_deleted_while_its_page_is_open_leaves_the_page(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put("tiny", (0, 20, "preempted"))
    out = tmp_path / "tiny.html"
    monkeypatch.setattr(runs, "sleep", lambda _: bucket.remove("runs/tiny/"))
    assert main(["runs", "show", "dev", "tiny", "--follow", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: tiny was deleted while its page was open")
    assert error.endswith("fix: tpu runs dev lists the runs that are there\n")
    assert "tiny was deleted; this is what was read of it before." in out.read_text()
    assert "step 20 of 40" in text_of(out.read_text())
    assert "http-equiv" not in out.read_text()


def test_a_followed_page_outlives_a_refusal_and_has_each_row_once(
    bucket: Bucket, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    bucket.put("tiny", (0, 20, "preempted"))
    out, rounds = tmp_path / "tiny.html", iter(["refuse", "end"])

    def refuse(url: str) -> None:
        if "events" in url:
            raise requests.exceptions.MissingSchema("no login")

    def pause(_: float) -> None:
        session.before = refuse if next(rounds) == "refuse" else lambda _: None
        if session.before is not refuse:
            bucket.put("tiny", (20, 40, "done"))

    monkeypatch.setattr("infra.google.client.time.sleep", lambda _: None)
    monkeypatch.setattr(runs, "sleep", pause)
    assert main(["runs", "show", "dev", "tiny", "--follow", "--out", str(out)]) == 0
    assert capsys.readouterr().err.count("not read: ") == 1
    assert "step 40 of 40" in text_of(out.read_text())


@pytest.mark.parametrize(
    ("known", "words", "message"),
    [
        (["tiny"], ["show", "dev", "tinny"], "no run tinny in gs://my-project-checkpoints/runs/\n"
         "    fix: tpu runs show dev tiny\n"),
        (["tiny"], ["show", "dev", "llama"], "fix: tpu runs dev lists them\n"),
        (["tiny"], ["show", "dev", "tiny", "wide"], "no run wide in"),
        ([], ["show", "dev", "tiny"], "fix: a slice with `run: train tiny.toml` in Pulumi.dev.yaml, then "),
        (["tiny"], ["show", "dev", "../tiny"], "RUN: '../tiny' must be a-z, 0-9"),
    ],
)  # fmt: skip
def test_an_unknown_run_is_named_with_the_next_command(
    bucket: Bucket, known: list[str], words: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for run in known:
        bucket.write(f"runs/{run}/config.json", json.dumps(record(8, 40)).encode())
    assert main(["runs", *words, "--out", str(tmp_path / "page.html")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
    assert not (tmp_path / "page.html").exists()


def test_no_runs_and_no_bucket_are_one_message_each(
    bucket: Bucket, cloud: Emulated, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "dev"]) == 0
    assert capsys.readouterr().out == (
        "no runs in gs://my-project-checkpoints/runs/\n"
        "  next: a slice with `run: train tiny.toml` in Pulumi.dev.yaml, then tpu up dev\n"
    )
    cloud.request("DELETE", f"storage.googleapis.com/storage/v1/b/{BUCKET}")
    assert main(["runs", "dev"]) == 1
    assert capsys.readouterr().err.endswith("there is no such bucket\n    fix: tpu up dev storage\n")


def test_damaged_objects_are_left_out_and_all_texts_escaped(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("tiny", (0, 20, "preempted"))
    hostile = {**record(8, 40), "exact": {"train": {"steps": "x"}, "note": "<script>alert(1)</script>"}}
    bucket.write("runs/tiny/config.json", json.dumps(hostile).encode())
    bucket.write("runs/tiny/status.json", b'{"state": "<b>", "step": -1, "loss": "no", "node": 7}')
    bucket.write("runs/tiny/lease.json", b"[")
    bucket.write("runs/tiny/goodput/0.json", b"{}")
    out = tmp_path / "tiny.html"
    assert main(["runs", "show", "dev", "tiny", "--out", str(out)]) == 0
    page = out.read_text()
    assert "&lt;script&gt;" in page
    assert not re.search(r"<script|<b>(?=</)", page)
    assert main(["runs", "dev"]) == 0
