"""Runs on real Spark: the bytes that a run in memory makes, and what Spark alone can do to one."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.spark import environment
from tests.workload.preprocess.starting import command, content, run_folder, start, starts
from tests.workload.preprocess.test_run import similar

pytestmark = [pytest.mark.slow, pytest.mark.prove]
LOCAL = ("--master", "local[2]")


def test_the_same_bytes_whatever_the_partitions_cores_and_speculation(
    source: Path, tokenizer: Path, reference: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "raw"
    shutil.copytree(source, moved)
    raw = similar(tmp_path / "similar")
    outs = [tmp_path / f"out{number}" for number in range(5)]
    speculation = ["--conf", "spark.speculation=true", "--conf", "spark.speculation.quantile=0.1"]
    fuzzy = {"dedup__method": "fuzzy", "output__shards": 3}
    shown = starts(
        [
            command(outs[0], source, "--master", "local[1]", tokenizer__name=tokenizer),
            command(outs[1], source, *LOCAL, tokenizer__name=tokenizer, runtime__partitions=2),
            command(outs[2], moved, "--master", "local[3]", tokenizer__name=tokenizer, runtime__partitions=5),
            command(outs[3], source, "--master", "local[4]", *speculation, tokenizer__name=tokenizer),
            command(outs[4], source, "--local", tokenizer__name=tokenizer, runtime__partitions=7),
            command(outs[4], source, "--local", tokenizer__name=tokenizer),
            command(tmp_path / "fuzzy1", raw, "--master", "local[1]", **fuzzy),
            command(tmp_path / "fuzzy3", raw, "--master", "local[3]", **fuzzy),
        ]
    )
    assert [status for status, _ in shown] == [0] * len(shown)
    assert all("5 of 5 shards made here" in text for _, text in shown[:5])
    assert "was ready, nothing to do" in shown[5][1]
    for out in outs:
        assert content(run_folder(out)) == content(reference)
        assert run_folder(out).name == reference.name
    assert "16 × alike; 10 × repeats" in shown[6][1]
    assert content(run_folder(tmp_path / "fuzzy1")) == content(run_folder(tmp_path / "fuzzy3"))


def test_a_task_that_fails_after_it_wrote_finds_its_own_bytes(
    source: Path, tokenizer: Path, reference: Path, tmp_path: Path
) -> None:
    failed = tmp_path / "failed"
    failing = str(Path(__file__).with_name("failing"))
    out = tmp_path / "out"
    start(
        command(out, source, "--master", "local[2,4]", tokenizer__name=tokenizer),
        FAILED_ONCE=str(failed),
        PYTHONPATH=failing,
    )
    assert failed.exists()
    assert content(run_folder(out)) == content(reference)


def test_refusals_are_a_message_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("good")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    script = tmp_path / "mine.py"
    script.write_text("def documents(rows):\n    for row in rows:\n        yield row['title']\n")
    shown = starts(
        [
            command(tmp_path / "out", tmp_path / "broken.parquet", *LOCAL),
            command(tmp_path / "out", tmp_path / "raw.txt", *LOCAL, filters__script=script),
            command("/proc/out", tmp_path / "raw.txt", *LOCAL),
        ]
    )
    assert [status for status, _ in shown] == [2, 2, 1]
    assert f"{tmp_path}/broken.parquet: can't be read: " in shown[0][1]
    assert "mine.py:3: KeyError: 'title'\n    fix: mend the script" in shown[1][1]
    assert "/proc/out/" in shown[2][1]
    assert "can't be written: No such file or directory" in shown[2][1]
    assert "Traceback" not in "".join(text for _, text in shown)
    assert not (tmp_path / "out").exists()


def test_a_run_needs_a_master(tmp_path: Path) -> None:
    assert "Spark has no master\n    fix: --local" in start(command(tmp_path / "out", tmp_path), status=1)
    variables = {"PYSPARK_SUBMIT_ARGS": "--master local pyspark-shell"}  # as runtime 3.0 of the service
    shown = start(command(tmp_path / "out", tmp_path), status=1, **variables)
    assert "of one thread, by default" in shown or "has no master" in shown


def test_a_run_that_is_interrupted_says_how_to_resume_and_nothing_of_java(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("some text")
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ndef documents(rows):\n    time.sleep(60)\n    yield from rows\n")
    line = command(tmp_path / "out", tmp_path / "one.txt", "--master", "local[2]", filters__script=slow)
    with subprocess.Popen(
        [environment.python(), "-m", "workload", "preprocess", *line],
        cwd=environment.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout
        shown = ""
        while "… run " not in shown:
            shown += process.stdout.readline() or pytest.fail(shown)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        rest = process.stdout.read()
    assert (process.returncode, rest) == (
        130, "workload: interrupted; repeat the command to resume\n"
    )  # fmt: skip
