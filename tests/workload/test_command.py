"""The command line: what it says when it is used wrongly, and what comes of it when rightly."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workload import __version__
from workload.__main__ import main
from workload.errors import HopelessError
from workload.processor import leave_tpu_out
from workload.runs.step_log import line, read_losses
from workload.runs.store import open_store
from workload.train.preemption import Preemption


@pytest.mark.parametrize(
    "words",
    ["", "train", "data", "data prepare", "checkpoints", "checkpoints list", "extract", "activations",
     "data streams", "preflight", "secrets", "launch", "host", "upload-curves", "preprocess"],
)  # fmt: skip
def test_every_command_has_help(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "usage: workload" in output
    assert "example" in output


def test_a_chip_that_has_no_room_is_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 116000000000 bytes.\nmore")

    monkeypatch.setattr("workload.train.config.load", full)
    assert main(["train", "tiny.toml"]) == 1
    output = capsys.readouterr().err
    assert "the chips' memory is too small: RESOURCE_EXHAUSTED: Out of memory" in output
    assert "fix: lower train.batch_size or extract.batch_tokens" in output


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"workload {__version__}\n"


def test_host_commands_are_handed_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["host", "--help"])
    assert ended.value.code == 0
    assert "usage: workload host" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "tiny.toml"], "$CHECKPOINT_BUCKET = (not set): must name the bucket"),
        (["train", "tiny.toml", "--dir", "d", "--name", "../up"], "--name = '../up': must be made of"),
        (["train", "tiny.toml", "--dir", "s3://b/x"], "--dir = s3://b/x: s3:// isn't supported"),
        (["train", "tiny.toml", "--dir", "gs:/b/x"], "--dir = gs:/b/x: gs:/ isn't supported"),
        (["train", "nowhere.toml", "--dir", "d"], "nowhere.toml: no such file or packaged config"),
        (["train", "tiny.toml", "--dir", "d", "--set", "model.layer=1"], "did you mean model.layers?"),
        (["train", "tiny.toml", "--dir", "d"], "manifest.json: can't be read"),
        (
            ["data", "prepare", "--source", ".", "--out", "d", "--tokenizer", "some/model"],
            "some/model: can't be read: No such file or directory\n    fix: download a model of the hub",
        ),
        (
            ["data", "prepare", "--source", ".", "--out", "d", "--chat", "--tokenizer", "some/model"],
            "download a model of the hub first: hf download some/model --local-dir some/model\n",
        ),
        (["data", "prepare", "--source", "nowhere", "--out", "d"], "nowhere: no such file or folder"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert message in output
    assert "fix: " in output
    assert "Traceback" not in output


def test_names_of_files_do_nothing_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "text"
    source.mkdir()
    (source / "good.txt").write_text("some words")
    (source / "\x1b[2J\udcff.jsonl").write_text("no JSON\n")
    assert main(["data", "prepare", "--source", str(source), "--out", str(tmp_path / "out")]) == 2
    output = capsys.readouterr().err
    assert "\\u001b[2J" in output
    assert "\x1b" not in output


def test_prepare_and_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text").write_text("some words")
    out = tmp_path / "out"
    assert main(["data", "prepare", "--source", str(tmp_path / "text"), "--out", str(out)]) == 0
    assert "1 documents, 11 tokens" in capsys.readouterr().out
    run = open_store(str(tmp_path / "run"))
    for command in (["checkpoints", "list"], ["checkpoints", "verify"], ["goodput"]):
        assert main([*command, run.url]) == 1
        assert f"{run.url}: no run was begun here\n    fix: name the folder" in capsys.readouterr().err
    run.write("config.json", b"{}")
    assert main(["goodput", run.url]) == 0
    assert "no start has stored its account yet" in capsys.readouterr().out
    run.write("goodput/1.json", b"{")
    assert main(["goodput", run.url]) == 0
    assert "goodput/1.json: is no JSON" in caplog.text
    capsys.readouterr()
    assert main(["checkpoints", "list", run.url]) == 0
    assert "no complete checkpoint" in capsys.readouterr().out
    run.write("checkpoints/10/commit_success.txt", b"")
    run.write("checkpoints/20/d/part", b"")
    assert main(["checkpoints", "list", run.url]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output == ["      10  complete", "      20  incomplete: no marker, not used"]


def test_losses_are_joined_from_segments_and_must_agree(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write("metrics/steps-0-2.jsonl", f"{line(1, 5.5)}\n{line(2, 0.1)}\n".encode())
    store.write("metrics/steps-1-3.jsonl", f"{line(2, 0.1)}\n{line(3, 4.0)}\n".encode())
    assert read_losses(store) == {1: 5.5, 2: 0.1, 3: 4.0}
    store.write("metrics/steps-2-3.jsonl", f"{line(3, 4.25)}\n".encode())
    with pytest.raises(
        HopelessError, match=r"step 3 was done twice with different losses, 0x1.0.*p\+2 and 0x1.1"
    ):
        read_losses(store)


@pytest.mark.parametrize(
    ("set_before", "platform"),
    [({}, "cpu"), ({"TPU_NAME": "tpu-0"}, "tpu,cpu"), ({"JAX_PLATFORMS": "cuda"}, "cuda")],
)
def test_without_a_tpu_jax_is_told_so_but_never_on_a_host(
    set_before: dict[str, str], platform: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: False)  # no GPU here
    monkeypatch.setenv("JAX_PLATFORMS", "")  # so that it is put back
    monkeypatch.delenv("JAX_PLATFORMS")
    for name, value in set_before.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("workload.processor.GOOGLE", "nobody")
    leave_tpu_out()
    assert os.environ.get("JAX_PLATFORMS") == platform


def test_a_chip_on_the_bus_is_left_to_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "")  # so that it is put back
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr("os.path.exists", lambda path: False)
    monkeypatch.setattr(Path, "glob", lambda *_: iter([Path("vendor")]))
    monkeypatch.setattr(Path, "read_text", lambda *_: "0x1ae0\n")
    leave_tpu_out()
    assert "JAX_PLATFORMS" not in os.environ


def test_ctrl_c_ends_a_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workload.train.config.load", interrupted)
    assert main(["train", "tiny.toml", "--dir", "d"]) == 130
    assert capsys.readouterr().err.startswith("workload: interrupted")


def test_ctrl_c_is_a_notice_to_a_run_that_is_alone_and_a_second_one_an_end() -> None:
    preemption = Preemption(workers=1)
    assert not preemption.reached()
    signal.raise_signal(signal.SIGINT)
    assert preemption.reached()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some")
    command = [sys.executable, "-m", "workload", "data", "streams", "--source", "text", "--out", "streams"]
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(command)} | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert (tmp_path / "streams" / "streams.json").exists()


def test_a_hosts_chips_that_are_gone_are_an_error_and_no_reason_to_train_on_its_cpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environment |= {"TPU_NAME": "tpu-dev", "GCE_METADATA_HOST": "127.0.0.1:1", "PYTHONPATH": str(Path.cwd())}
    (tmp_path / "text").write_text("some text " * 2000)
    command = [sys.executable, "-m", "workload"]
    assert (
        main(["data", "prepare", "--source", str(tmp_path / "text"), "--out", str(tmp_path / "tokens")]) == 0
    )
    done = subprocess.run(
        [*command, "train", "tiny.toml", "--dir", str(tmp_path), "--set", "data.path=tokens"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 1
    assert "workload: no chips: Unable to initialize backend 'tpu'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
