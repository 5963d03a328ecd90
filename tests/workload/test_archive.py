"""A run looked at from outside, and one that begins with weights: all on a run of four steps."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.limits import HANG_S
from tests.workload.slice import Command, RunFolder, command, cpu_devices, damage, limit_files, train
from tests.workload.test_tokens import tokenizer_json
from workload.__main__ import main
from workload.errors import RunError
from workload.host import events
from workload.model import huggingface
from workload.runs.goodput import read
from workload.runs.store import open_store
from workload.train.checkpoints import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("training")]

STEPS = 4


@pytest.fixture(scope="module")
def kept(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run, `once`, that is done."""
    root = tmp_path_factory.mktemp("archive")
    line = [*command("once", STEPS, 2), "--dir", str(root)]
    line += ["--set", "observe.profile_from=2", "--set", "observe.profile_steps=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert train(line) == 0
    return root / "runs" / "once"


def test_verify_reads_everything_and_names_what_is_damaged(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(kept, tmp_path / "run")
    assert main(["checkpoints", "verify", str(run)]) == 0
    digest = json.loads((run / "final.json").read_text())["params_sums_sha256"][:12]
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["2", "readable,"],
        ["4", "right,"],
    ]
    damage(run / "checkpoints" / "2")
    assert main(["checkpoints", "verify", str(run)]) == 1
    output = capsys.readouterr().out.splitlines()
    assert "can't be read" in output[0]
    assert output[1].split() == ["4", *["right,", "as", "the", "run", "ended"], digest]
    assert main(["checkpoints", "verify", str(run), "--step", "3"]) == 1
    assert "no complete checkpoint 3" in capsys.readouterr().err


def test_verify_sees_a_checkpoint_that_isnt_the_runs_end(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(kept, tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "4")
    shutil.copytree(run / "checkpoints" / "2", run / "checkpoints" / "4")
    assert main(["checkpoints", "verify", str(run)]) == 1
    assert "checksums.json: is of step 2" in capsys.readouterr().out
    (run / "checkpoints" / "4" / "checksums.json").unlink()
    assert main(["checkpoints", "verify", str(run)]) == 1
    assert "4  differs from final.json" in capsys.readouterr().out
    (run / "final.json").write_text("{")
    assert main(["checkpoints", "verify", str(run)]) == 1
    assert "final.json: is damaged" in capsys.readouterr().err


def test_checkpoints_are_looked_at_beside_a_run_that_holds_the_chips(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    assert main(["checkpoints", "verify", str(kept)]) == 0
    assert os.environ["JAX_PLATFORMS"] == "cpu"
    loaded = [sys.executable, "-c", "import sys, workload.__main__; sys.exit('jax' in sys.modules)"]
    assert subprocess.run(loaded, check=False).returncode == 0, "which reads the variable at its import"


def test_an_exported_checkpoint_holds_the_runs_parameters(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hf"
    assert main(["checkpoints", "export", str(kept), "--out", str(out), "--dtype", "float32"]) == 0
    arch = huggingface.read_architecture(out)
    assert (arch.layers, arch.d_model, arch.vocab_size) == (1, 32, 257)
    weights = load_file(out / "model.safetensors")
    assert weights["lm_head.weight"].shape == (257, 32)
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": 256}
    config = json.loads((out / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["max_position_embeddings"]) == (
        None,
        256,
        32,
    )
    assert main(["checkpoints", "export", str(kept), "--out", str(out)]) == 1, "it isn't empty any more"
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
    assert main(["checkpoints", "export", str(kept), "--out", str(tmp_path / "no"), "--step", "1"]) == 1
    assert main(["checkpoints", "export", str(tmp_path), "--out", str(tmp_path / "no")]) == 1
    capsys.readouterr()
    within_a_file = out / "config.json" / "no"
    assert main(["checkpoints", "export", str(kept), "--out", str(within_a_file)]) == 1
    assert re.search("can't be written: .*\n    fix: remove the partial export", capsys.readouterr().err)


def test_an_export_to_a_full_disk_ends_with_one_error(kept: Path, tmp_path: Path) -> None:
    line = ["checkpoints", "export", str(kept), "--out", str(tmp_path / "hf")]
    command = Command(line, tmp_path / "log", prepare=limit_files(1024))
    assert command.wait() == 1
    shown = command.log.read_text()
    assert re.search(r"hf: can't be written: .*\n    fix: remove the partial export, make room for", shown)
    assert "Traceback" not in shown


def test_a_run_begins_with_the_weights_that_it_is_given(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fine-tuning: the first loss is the end's, not that of a model that knows nothing."""
    weights = tmp_path / "hf"
    assert main(["checkpoints", "export", str(kept), "--out", str(weights), "--dtype", "float32"]) == 0
    line = [*command("tuned", 1, 1), "--dir", str(tmp_path), "--set", f"train.init_from={weights}"]
    line = [word.replace("optimizer.warmup_steps=1", "optimizer.warmup_steps=0") for word in line]
    assert main(line) == 0
    (segment,) = (tmp_path / "runs" / "tuned" / "metrics").iterdir()
    first = json.loads(segment.read_text())["loss"]
    begun = json.loads((kept / "metrics" / "steps-0-2.jsonl").read_text().splitlines()[0])["loss"]
    assert abs(first - begun) > 0.02
    before = load_file(weights / "model.safetensors")
    tuned = tmp_path / "tuned-hf"
    line = ["checkpoints", "export", str(tmp_path / "runs/tuned"), "--out", str(tuned)]
    assert main([*line, "--dtype", "float32"]) == 0
    after = load_file(tuned / "model.safetensors")
    assert before.keys() == after.keys()
    moved = max(float(np.max(np.abs(before[name] - after[name]))) for name in before)
    assert 0 < moved < 0.01, "one step away from the weights given"


def test_weights_of_another_model_or_tokenizer_are_refused_before_a_step(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "hf"
    assert main(["checkpoints", "export", str(kept), "--out", str(weights)]) == 0
    tokenizer_json(weights)
    line = [*command("tuned", 2, 1), "--dir", str(tmp_path), "--set", f"train.init_from={weights}"]
    assert main([*line, "--set", "model.heads=2"]) == 2
    output = capsys.readouterr().err
    assert "model.heads = 2: must be 4, as in" in output
    assert "has another tokenizer than the tokens, bytes" in output
    assert main([*line, "--set", f"train.init_from={tmp_path}"]) == 2
    assert "config.json: can't be read" in capsys.readouterr().err
    (weights / "tokenizer.json").unlink()
    (weights / "model.safetensors").write_bytes(b"cut short")
    assert main(line) == 2
    assert "model.safetensors: is damaged or truncated" in capsys.readouterr().err
    (weights / "model.safetensors").unlink()
    assert main(line) == 2
    assert "holds neither model.safetensors nor" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "tuned" / "config.json").exists(), "its name is still free"


def test_the_account_of_a_runs_time(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", str(kept), "--json"]) == 0
    total = json.loads(capsys.readouterr().out)
    assert total["wall_s"] == pytest.approx(sum(total["accounts_s"].values()))
    assert total["accounts_s"]["init"] > 0.2, "the imports before it count"
    assert (total["starts"], total["steps"]) == (1, STEPS)
    assert main(["goodput", str(kept)]) == 0
    assert "4 steps in 1 starts" in capsys.readouterr().out
    assert main(["goodput", str(kept.parent)]) == 1
    assert "no run was begun here" in capsys.readouterr().err


def test_a_kill_loses_no_more_than_seconds_of_the_account(tokens: Path, tmp_path: Path) -> None:
    """Steps after the last save were done too, and are lost: they aren't the time between two starts."""
    line = [*command("killed", 100_000, 100_000), "--dir", str(tmp_path)]
    run = tmp_path / "runs" / "killed"
    process = Command(line, tmp_path / "log", {"DATA_DIR": str(tokens)})
    try:
        give_up = time.monotonic() + HANG_S
        while sum(entry["to"] for entry in read(open_store(str(run)))) < 20:
            assert process.status is None
            assert time.monotonic() < give_up
            time.sleep(0.1)
    finally:
        process.kill()
    (start,) = read(open_store(str(run)))
    assert start["from"] == 0
    assert start["accounts"]["step"] > 0


def test_a_profile_of_the_steps_that_were_named(kept: Path) -> None:
    files = [path.name for path in (kept / "profile" / "worker-0").rglob("*") if path.is_file()]
    assert any(name.endswith(".xplane.pb") for name in files)


def test_a_trace_may_be_asked_for_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that nobody handles ends the process."""
    handler = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    handlers = []

    def restore(*_: object) -> None:
        handlers.append(signal.getsignal(signal.SIGUSR1))
        raise RunError("far enough")

    monkeypatch.setattr(Checkpoints, "restore", restore)
    try:
        assert main([*command("asked", 2, 1), "--dir", str(tmp_path)]) == 1
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert handlers != [signal.SIG_DFL]


def test_a_notice_too_short_for_a_save_leaves_the_last_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "short"

    def take() -> None:
        while not (run / "checkpoints" / "3" / "commit_success.txt").exists():
            threading.Event().wait(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=take, daemon=True).start()
    line = [*command("short", 100_000, 1000), "--set", "checkpoint.every_steps=3", "--dir", str(tmp_path)]
    assert main([*line, "--set", "checkpoint.notice_s=0"]) == 0
    output = capsys.readouterr().out
    assert 'notice-plan {"on_notice": "relies on the last save"' in output
    assert "notice-too-short" in output
    status = RunFolder(run).json("status.json")
    assert (status["state"], status["step"]) == ("preempted", RunFolder(run).complete()[-1])
    assert status["step"] % 3 == 0


def test_a_second_start_reads_what_the_first_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the runs, in a folder for this kind of processor; the losses stay."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    finals, entries = [], []
    for name in ("cold", "warm"):
        start = Command([*command(name, 2, 1), "--dir", str(tmp_path)], tmp_path / f"{name}.log")
        assert start.wait() == 0, start.log.read_text()
        finals.append(RunFolder(tmp_path / "runs" / name).json("final.json"))
        (cache,) = (tmp_path / "compilation-cache").glob("cpu-????????????????")
        entries.append({path.name for path in cache.iterdir() if "-cache" in path.name})
    assert any("jit__update" in entry for entry in entries[0])
    assert entries[0] == entries[1], "the second start compiled something"
    assert finals[0] == finals[1]


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_last_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*command("diverged", 60, 5), "--dir", str(tmp_path), "--set", "optimizer.learning_rate=1e38"]
    line += ["--set", "optimizer.warmup_steps=8", "--set", "optimizer.schedule=constant"]
    assert main(line) == 2, "started again, it would come to the same end"
    out, output = capsys.readouterr()
    assert "not finite" in output
    (event,) = (
        payload
        for line in out.splitlines()
        if (payload := events.payload(line)) and payload["event"] == "loss-not-finite"
    )
    assert isinstance(event["step"], int)
    assert event["loss"] in ("nan", "inf", "-inf") or event["gradient_norm"] in ("nan", "inf")
    run = RunFolder(tmp_path / "runs" / "diverged")
    assert run.json("status.json")["state"] == "failed"
    newest = max(run.begun(), default=0)
    expected = f"checkpoint {newest} is the last good one" if newest else "no checkpoint was saved before"
    assert expected in output


def test_what_a_device_cannot_compute_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfit = ("compute.examples_at_once=3", "compute.attention=splash")
    assert main([*command("unfit", 2, 1, *unfit), "--dir", str(tmp_path)]) == 2
    output = capsys.readouterr().err
    assert "compute.examples_at_once = 3: must divide the 16 examples of a device per part" in output
    assert "compute.attention = splash: is a kernel for TPUs, and this is a cpu\n    fix: auto" in output


def test_a_run_goes_on_with_another_number_of_devices_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two devices, then four: the checkpoint is laid out anew, the examples stay what they were."""
    run = RunFolder(tmp_path / "runs" / "moved")

    def train_on(count: int) -> dict[int, float]:
        with cpu_devices(count):
            assert train([*command("moved", 6, 3), "--dir", str(tmp_path)]) == 0
        return {step: float.fromhex(seen) for step, (seen,) in run.losses().items()}

    before = train_on(2)
    (run.path / "checkpoints" / "6" / "commit_success.txt").unlink()  # as if it had been killed while saving
    (run.path / "final.json").unlink()
    capsys.readouterr()
    after = train_on(4)
    output = capsys.readouterr().out
    assert 'moved {"step": 3' in output
    assert 'restore {"step": 3}' in output
    assert sorted(after) == [1, 2, 3, 4, 5, 6]
    assert [after[step] for step in (1, 2, 3)] == [before[step] for step in (1, 2, 3)]
    assert max(abs(after[step] - before[step]) for step in (4, 5, 6)) < 1e-5
    assert run.json("config.json")["rounding"]["mesh"] == {"data": 1, "fsdp": 4}


def test_a_batch_that_does_not_divide_over_the_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cpu_devices(2):
        assert train([*command("odd", 2, 1, "train.batch_size=3"), "--dir", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "train.batch_size = 3: must be a multiple of the number of devices, 2" in shown
    assert "fix: --set train.batch_size=4" in shown
