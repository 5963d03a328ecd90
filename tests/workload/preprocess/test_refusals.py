"""What a run refuses: one clear message each, and nothing written."""

import gzip
from pathlib import Path

import pytest

from tests.workload.preprocess import corpus
from tests.workload.preprocess.starting import command, start, starts
from workload.__main__ import main

pytestmark = pytest.mark.slow
LOCAL = ("--master", "local[2]")


def test_inputs_that_hold_no_document_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    for name in ("white", "broken", "cut", "parquet", "script"):
        (tmp_path / name).mkdir()
    (tmp_path / "white" / "a.txt").write_text(" \n")
    (tmp_path / "white" / "b.jsonl").write_text('{"text": ""}\n\n')
    good, bad = corpus.lines(corpus.texts(8, seed=1)), b'{"body": "the schema changed half way"}\n' * 8
    (tmp_path / "broken" / "a.jsonl").write_bytes(good + bad)
    (tmp_path / "cut" / "a.jsonl.gz").write_bytes(gzip.compress(corpus.lines(corpus.texts(99, 1)))[:-400])
    corpus.write_zstandard(tmp_path / "cut" / "b.jsonl.zst", corpus.lines(corpus.texts(99, 1)))
    raw = (tmp_path / "cut" / "b.jsonl.zst").read_bytes()
    (tmp_path / "cut" / "b.jsonl.zst").write_bytes(raw[:-400])
    (tmp_path / "parquet" / "c.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "script" / "a.txt").write_text("good")
    script = tmp_path / "mine.py"
    script.write_text("def documents(rows):\n    for row in rows:\n        yield row['title']\n")
    out = tmp_path / "out"
    kinds = ("none", "white", "broken", "cut", "parquet")
    commands = [command(out, tmp_path / kind, *LOCAL) for kind in kinds]
    commands.append(command(out, tmp_path / "script", *LOCAL, filters__script=script))
    commands.append(command(out, tmp_path / "nowhere", *LOCAL))
    commands.append(command(out, f'["{tmp_path}/white", "{tmp_path}/white"]', *LOCAL))
    found = starts(commands)
    none, white, broken, cut, footless, scripted, nowhere, twice = found
    assert {status for status, _ in found} == {2}
    assert "holds no file\n    fix: name a folder or prefix that holds text" in none[1]
    assert "no document is accepted, of 2 files: 2 × empty" in white[1]
    assert "input.max_unusable_fraction = 0.1: 8 of 16 can't be used: 8 × no_field" in broken[1]
    assert f"{tmp_path}/cut/a.jsonl.gz: can't be read: Compressed file ended" in cut[1]
    assert f"{tmp_path}/cut/b.jsonl.zst: can't be read: " in cut[1]
    assert f"{tmp_path}/parquet/c.parquet: can't be read: " in footless[1]
    assert "mine.py:3: KeyError: 'title'\n    fix: mend the script" in scripted[1]
    assert f"input.sources: {tmp_path}/nowhere: no such file or folder" in nowhere[1]
    assert "two files are called white/a.txt" in twice[1]
    assert "Traceback" not in "".join(shown for _, shown in found)
    assert not out.exists()


def test_storage_that_refuses_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("good")
    shown = start(command("/proc/out", tmp_path / "raw.txt", *LOCAL), status=1)
    assert "/proc/out/" in shown
    assert "can't be written: No such file or directory" in shown
    assert "Traceback" not in shown


def test_a_run_needs_a_master_and_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Spark has no master\n    fix: --local" in start(command(tmp_path / "out", tmp_path), status=1)
    variables = {"PYSPARK_SUBMIT_ARGS": "--master local pyspark-shell"}  # as runtime 3.0 of the service
    shown = start(command(tmp_path / "out", tmp_path), status=1, **variables)
    assert "of one thread, by default" in shown or "has no master" in shown
    assert main(["preprocess", *command(tmp_path / "out", tmp_path, "--local")]) == 1  # no Spark here
    assert 'fix: in a checkout: "$(tools/setup.sh spark' in capsys.readouterr().err
