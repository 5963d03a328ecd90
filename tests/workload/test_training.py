"""A single worker: storage in a bucket, damaged checkpoints, notices, and runs that don't fit."""

import json
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp  # type: ignore[import-untyped]
import pytest

from tests.limits import HANG_S
from tests.served import Received, Reply, serving
from tests.workload.slice import Command, RunFolder, command, damage, limit_files, train
from workload.__main__ import main
from workload.runs.step_log import StepLog
from workload.runs.store import open_store
from workload.train import launch
from workload.train.checkpoints import Checkpoints
from workload.train.cluster import Membership
from workload.train.preemption import Preemption
from workload.train.stored_steps import list_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("training")]


LINE = command("done", 4, 2)


@pytest.fixture(scope="module")
def finished(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps that saved twice."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert train([*LINE, "--dir", str(root)]) == 0
    return root / "runs" / "done"


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> RunFolder:
    """A copy of that run, in `runs/` of the test's own folder."""
    return RunFolder(shutil.copytree(finished, tmp_path / "runs" / "done"))


def test_in_a_bucket_a_run_commits_by_marker_and_passes_over_a_step_without(
    storage_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    monkeypatch.setenv("CHECKPOINT_BUCKET", "bucket")
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", storage_url)

    def train() -> str:
        assert main(command("marked", 8, 2)) == 0
        return capsys.readouterr().out

    store = open_store("gs://bucket/runs/marked")
    train()
    assert list_steps(store).complete == (4, 6, 8)
    assert store.list("checkpoints/2/") == []
    final = store.read("final.json")
    store.delete("checkpoints/8/commit_success.txt")
    assert list_steps(store).incomplete == (8,)
    output = train()
    assert re.search(r'passed-over \{"step": 8, "reason": "no marker', output)
    assert re.search(r'restore \{"step": 6\}', output)
    assert store.read("final.json") == final
    assert list_steps(store).complete == (4, 6, 8)


def test_a_damaged_checkpoint_is_passed_over_and_made_anew(
    done: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, run = [*LINE, "--dir", str(tmp_path)], done
    final = run.json("final.json")
    damage(run.path / "checkpoints" / "4")
    after_damage = snapshot(run.path / "checkpoints" / "4")
    assert main(line) == 0
    (passed_over,) = run.events("passed-over")
    assert passed_over["step"] == 4
    assert [event["step"] for event in run.events("restore")] == [2]
    assert run.json("final.json") == final
    assert snapshot(run.path / "checkpoints" / "4") != after_damage
    mended = snapshot(run.path / "checkpoints" / "4")
    assert main(line) == 0
    assert [event["step"] for event in run.events("restore")] == [2, 4]
    assert snapshot(run.path / "checkpoints" / "4") == mended, "a complete step was saved again"

    damage(run.path / "checkpoints" / "4")
    damage(run.path / "checkpoints" / "2")
    assert main(line) == 1
    refusal = capsys.readouterr().err
    assert "no checkpoint can be read" in refusal
    assert "give the run another --name" in refusal
    assert run.json("status.json")["state"] == "failed"


def test_steps_that_cant_be_read_never_push_out_those_that_can(tmp_path: Path) -> None:
    root = ["--dir", str(tmp_path)]
    assert main([*command("pushed", 8, 2), *root]) == 0
    run = RunFolder(tmp_path / "runs" / "pushed")
    assert run.complete() == [4, 6, 8]
    damage(run.path / "checkpoints" / "6")
    damage(run.path / "checkpoints" / "8")
    assert main([*command("pushed", 8, 1, "checkpoint.keep=2"), *root]) == 0
    assert run.complete() == [7, 8]
    assert main([*command("pushed", 8, 1, "checkpoint.keep=2"), *root]) == 0
    assert [event["step"] for event in run.events("restore")] == [4, 8]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_runs_status_says_how_its_slice_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATOR_TYPE", "v6e-1")
    monkeypatch.setenv("TPU_PROVISIONING", "spot")
    assert main([*command("rented", 2, 1), "--dir", str(tmp_path)]) == 0
    status = RunFolder(tmp_path / "runs" / "rented").json("status.json")
    assert (status["accelerator"], status["provisioning"], "zone" in status) == ("v6e-1", "spot", False)


def test_a_run_that_is_done_or_has_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [*command("once", 2, 1), "--dir", str(tmp_path)]
    assert main(line) == 0
    run = RunFolder(tmp_path / "runs" / "once")
    before = run.json("final.json"), run.complete()
    assert main([*line, "--set", "checkpoint.keep=9"]) == 0
    assert (run.json("final.json"), run.complete()) == before

    assert main([*line, "--set", "train.seed=5", "--set", "compute.dtype=bfloat16"]) == 2
    refusal = capsys.readouterr().err
    assert "compute.dtype was float32, is bfloat16; train.seed was 0, is 5" in refusal
    assert "give the new run another --name" in refusal
    assert run.json("final.json") == before[0]
    assert main([*line, "--set", "train.batch_size=100000"]) == 2
    assert "train.batch_size = 100000: must not be more" in run.events("failed")[-1]["reason"]
    assert run.json("status.json")["state"] == "done", "a start that was refused is no failure of the run"


def test_a_start_killed_before_it_forgot_what_another_mesh_wrote_leaves_that_to_the_next(
    done: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, run = [*LINE, "--dir", str(tmp_path)], done
    (run.path / "checkpoints" / "4" / "commit_success.txt").unlink()
    line += ["--set", "compute.loss_chunk_tokens=100"]
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "restore", lambda *_: pytest.fail("stands for a kill"))
        with pytest.raises(pytest.fail.Exception):
            main(line)
    assert main(line) == 0
    assert [event["step"] for event in run.events("moved")] == [2]


def test_another_compiler_or_way_to_compile_is_a_move_and_no_broken_promise(
    done: RunFolder, tmp_path: Path
) -> None:
    line, run = [*LINE, "--dir", str(tmp_path)], done
    was = run.json("config.json")
    assert was["rounding"]["chip"] == "cpu"
    was["rounding"]["compiler"] = "jaxlib 0.1"
    (run.path / "config.json").write_text(json.dumps(was))
    for override in ("compute.quick_compile=true", "compute.quick_compile=false"):
        (run.path / "checkpoints" / "4" / "commit_success.txt").unlink()
        assert main([*line, "--set", override]) == 0
    assert len(run.events("moved")) == 2


def forget_last_save(run: RunFolder) -> tuple[Path, str]:
    """Remove the last checkpoint's marker, and change the recorded losses of the steps before it."""
    (run.path / "checkpoints" / "4" / "commit_success.txt").unlink()
    segment = run.path / "metrics" / "steps-2-4.jsonl"
    evidence = segment.read_text().replace("0x1.", "0x1.0")
    segment.write_text(evidence)
    return segment, evidence


def test_a_step_done_again_with_another_loss_is_an_event_and_the_run_goes_on(
    done: RunFolder, tmp_path: Path
) -> None:
    run, (segment, evidence) = done, forget_last_save(done)
    assert main([*LINE, "--set", "observe.strict=false", "--dir", str(tmp_path)]) == 0
    (event,) = run.events("loss-differs")
    assert (event["step"], event["steps"]) == (3, 2)
    assert event["was"] == float.fromhex(json.loads(evidence.splitlines()[0])["loss_hex"]).hex()
    assert event["now"] == json.loads(segment.read_text().splitlines()[0])["loss_hex"]
    assert run.json("status.json")["steps_that_differ"] == 2
    assert run.json("final.json")["loss_hex"] in segment.read_text()
    assert all(len(seen) == 1 for seen in run.losses().values())


def test_a_strict_run_ends_where_a_step_done_again_has_another_loss(
    done: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, (segment, evidence) = done, forget_last_save(done)
    (run.path / "final.json").unlink()
    assert main([*LINE, "--set", "observe.strict=true", "--dir", str(tmp_path)]) == 2
    assert "step 3 was done twice with different losses" in capsys.readouterr().err
    assert segment.read_text() == evidence
    assert not (run.path / "final.json").exists()
    assert run.complete() == [2]


def test_storage_that_is_full_ends_the_run_with_one_error(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's."""
    line = [*command("full", 4, 2, "model.d_ff=512"), "--dir", str(tmp_path)]
    limited = Command(line, tmp_path / "log", prepare=limit_files(16384))
    assert limited.wait() == 1
    shown = limited.log.read_text()
    error, fix = shown.splitlines()[-2:]
    assert "checkpoints/2: can't be saved: OUT_OF_RANGE" in error
    assert re.match(r"    fix: make room for 0\.00\d+ GB, or .*; no checkpoint was saved before", fix)
    assert not re.search("absl|Traceback|Event loop", shown)
    run = RunFolder(tmp_path / "runs" / "full")
    assert run.complete() == []
    assert run.json("status.json")["state"] == "failed"
    assert "can't be saved" in run.events("failed")[0]["reason"]
    assert main(line) == 0


def test_the_interval_counts_what_training_stands_still_for_and_losses_are_not_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go into storage before the marker does, and nobody waits for them."""
    flush, begin = StepLog.flush, ocp.AsyncCheckpointer.save
    begun_s: list[float] = []

    def slow_flush(step_log: StepLog, to: int) -> None:
        time.sleep(2.0)
        flush(step_log, to)

    def slow_begin(self: Any, *arguments: Any, **named: Any) -> None:
        from_s = time.monotonic()
        time.sleep(0.5)
        begin(self, *arguments, **named)
        begun_s.append(time.monotonic() - from_s)

    monkeypatch.setattr(StepLog, "flush", slow_flush)
    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", slow_begin)
    assert main([*command("stalled", 12, 0), "--dir", str(tmp_path)]) == 0
    (event, *_) = RunFolder(tmp_path / "runs" / "stalled").events("interval")
    stall = re.search(r"stall of ([\d.]+) s", event["reason"])
    assert stall
    assert 0.5 <= float(stall[1]) < begun_s[0] + 2.0


def test_a_notice_at_the_last_step_ends_the_run_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a save wouldn't fit into the notice: there are no steps to come back for."""
    calls, reached = 0, Preemption.reached

    def noticed(preemption: Preemption) -> bool:  # the notice comes during the third step
        nonlocal calls
        stops = reached(preemption)
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return stops

    monkeypatch.setattr(Preemption, "reached", noticed)
    line = [*command("last", 3, 2, "checkpoint.notice_s=0"), "--dir", str(tmp_path)]
    assert main(line) == 0
    run = RunFolder(tmp_path / "runs" / "last")
    assert calls == 2
    assert run.json("final.json")["step"] == 3
    assert run.complete() == [2, 3]


def test_the_metadata_servers_notice_saves_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer to the wait for a change is cut off, as when the server restarts."""
    taken, waited = threading.Event(), list[str]()

    def answer(request: Received) -> Reply:
        assert request.headers["Metadata-Flavor"] == "Google"
        assert request.path == "/computeMetadata/v1/instance/preempted"
        if "wait_for_change" not in request.query:
            return Reply(200, b"FALSE", [("ETag", "one")])
        waited.append(request.target)
        if len(waited) == 1:
            return Reply(200, b"TRUE", [("ETag", "two"), ("Content-Length", "100"), ("Connection", "close")])
        taken.wait(HANG_S)
        return Reply(200, b"TRUE", [("ETag", "two")])

    with serving(answer) as address:
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        run = RunFolder(tmp_path / "runs" / "taken")
        watcher = threading.Thread(target=_take_at, args=(run, 3, taken), daemon=True)
        watcher.start()
        line = [*command("taken", 100_000, 1000), "--set", "checkpoint.every_steps=3", "--dir", str(tmp_path)]
        assert main(line) == 0
    assert len(waited) == 2
    assert all("last_etag=one" in path for path in waited)
    (event,) = run.events("preempted")
    status = run.json("status.json")
    assert (status["state"], status["step"]) == ("preempted", event["step"])
    assert run.complete()[-1] == event["step"]
    assert event["lost_steps"] == 0, "the notice is long enough for a save"
    assert sorted(run.losses()) == list(range(1, event["step"] + 1))
    assert not (run.path / "final.json").exists()


@pytest.mark.parametrize(
    ("state", "workers", "own_machine", "status"),
    [
        ("preempted", 2, False, 75),
        ("preempted", 2, True, 0),
        ("preempted", 1, False, 0),
        ("done", 2, False, 0),
    ],
)
def test_a_worker_that_stays_is_started_again_when_another_was_taken(
    state: str, workers: int, own_machine: bool, status: int
) -> None:
    """`own_machine`: this machine's own metadata announces the preemption."""
    values = {"/computeMetadata/v1/instance/preempted": b"TRUE" if own_machine else b"FALSE"}
    with serving(lambda request: Reply(200, values[request.target])) as address:
        membership = Membership(0, workers, "10.0.0.2:8476")
        host = {"GCE_METADATA_HOST": address}
        assert launch.exit_status(state, membership, host) == status
        # To a JobSet and to Slurm 0 is the end of the work, of a job of one host, too.
        for launched in ("JOB_WORKER", "SLURM_PROCID"):
            ended = launch.exit_status(state, membership, {**host, launched: "0"})
            assert ended == (75 if state == "preempted" else 0)


def _take_at(run: RunFolder, step: int, taken: threading.Event) -> None:
    while not run.has_begun_to_save(step):
        threading.Event().wait(0.02)
    taken.set()


def test_a_start_that_was_replaced_saves_and_says_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*command("replaced", 6, 2), "--dir", str(tmp_path)]
    run = RunFolder(tmp_path / "runs" / "replaced")
    before: dict[str, bytes] = {}

    def replaced(*arguments: Any, **named: Any) -> str:
        holder = {"start": "x", "node": "tpu-b", "host": "far", "boot": "", "pid": 7, "began": ""}
        (run.path / "lease.json").write_text(json.dumps(holder | {"written": 0}))
        before.update(snapshot(run.path / "events"))
        return save(*arguments, **named)

    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", replaced)
    assert main(line) == 2
    assert "process 7 on tpu-b has taken this run over" in capsys.readouterr().err
    assert run.complete() == []
    assert run.json("lease.json")["start"] == "x"
    assert snapshot(run.path / "events") == before
    assert run.json("status.json")["state"] == "running"


def test_a_run_that_ended_keeps_its_end(
    done: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last checkpoint is readable, but has other content by now."""
    line, run = [*LINE, "--dir", str(tmp_path)], done
    final = run.json("final.json")
    (run.path / "final.json").write_text(json.dumps(final | {"params_sums_sha256": "0" * 64}))
    before = run.json("final.json")
    assert main(line) == 2
    assert "differs from checkpoint 4, which was damaged since the run ended" in capsys.readouterr().err
    assert run.json("final.json") == before


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\xff\xff", "token 65535 is outside the vocabulary of 257: the file is damaged"),
        (b"\x00\x01", "step 1: no target counts: each token of its examples ends a document"),
    ],
)
def test_tokens_that_nothing_is_learnt_from_are_no_divergence(
    token: bytes, message: str, tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tokens, tmp_path / "tokens")
    path = tmp_path / "tokens" / "tokens-00000.bin"
    path.write_bytes(token * (path.stat().st_size // 2))
    line = [*command("bad-tokens", 4, 2), "--dir", str(tmp_path), "--set", f"data.path={tmp_path / 'tokens'}"]
    assert main(line) == 2
    assert message in capsys.readouterr().err
