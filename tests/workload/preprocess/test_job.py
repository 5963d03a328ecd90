"""Whole runs on real Spark: the same bytes however they are computed, which the trainer reads."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.spark import environment
from tests.workload.preprocess import corpus
from tests.workload.preprocess.starting import command, content, run_folder, start, starts
from workload.__main__ import main
from workload.data.prepare import prepare
from workload.data.tokenizers import open_tokenizer
from workload.data.tokens import Manifest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.tokenizer(tmp_path_factory.mktemp("tokenizer") / "bpe")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, corpus.Expected]:
    folder = tmp_path_factory.mktemp("source") / "raw"
    return folder, corpus.mixed(folder)


@pytest.fixture(scope="module")
def reference(
    source: tuple[Path, corpus.Expected], tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of one core."""
    out = tmp_path_factory.mktemp("reference") / "tokens"
    shown = start(command(out, source[0], "--master", "local[1]", tokenizer__name=tokenizer))
    assert "5 of 5 shards made here" in shown
    return run_folder(out)


def test_the_same_bytes_whatever_the_partitions_cores_and_speculation(
    source: tuple[Path, corpus.Expected], tokenizer: Path, reference: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "raw"
    shutil.copytree(source[0], moved)
    outs = [tmp_path / f"out{number}" for number in range(5)]
    speculation = ["--conf", "spark.speculation=true", "--conf", "spark.speculation.quantile=0.1"]
    shown = starts(
        [
            command(
                outs[0],
                source[0],
                "--master",
                "local[2]",
                "--set",
                "runtime.partitions=2",
                tokenizer__name=tokenizer,
            ),
            command(
                outs[1],
                source[0],
                "--master",
                "local[4]",
                "--set",
                "runtime.partitions=3",
                tokenizer__name=tokenizer,
            ),
            command(
                outs[2],
                moved,
                "--master",
                "local[3]",
                "--set",
                "runtime.partitions=5",
                tokenizer__name=tokenizer,
            ),
            command(outs[3], source[0], "--master", "local[4]", *speculation, tokenizer__name=tokenizer),
            command(outs[4], source[0], "--local", runtime__partitions=7, tokenizer__name=tokenizer),
        ]
    )
    assert all("5 of 5 shards made here" in one for _, one in shown)
    for out in outs:
        assert content(run_folder(out)) == content(reference)
        assert run_folder(out).name == reference.name


def test_a_task_that_fails_after_it_wrote_finds_its_own_bytes(
    source: tuple[Path, corpus.Expected], tokenizer: Path, reference: Path, tmp_path: Path
) -> None:
    failed = tmp_path / "failed"
    failing = str(Path(__file__).with_name("failing"))
    out = tmp_path / "out"
    start(
        command(out, source[0], "--master", "local[2,4]", tokenizer__name=tokenizer),
        FAILED_ONCE=str(failed),
        PYTHONPATH=failing,
    )
    assert failed.exists()
    assert content(run_folder(out)) == content(reference)


def test_a_start_resumes_and_the_one_after_it_has_nothing_to_do(
    source: tuple[Path, corpus.Expected], tokenizer: Path, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(reference, out / reference.name)
    left = out / reference.name
    for name in ("_READY", "manifest.json", "parts/00003.json"):
        (left / name).unlink()
    next(left.glob("tokens-00003-*")).unlink()
    again = command(out, source[0], "--master", "local[2]", tokenizer__name=tokenizer)
    other = command(
        out, source[0], "--master", "local[2]", "--set", "output.shards=6", tokenizer__name=tokenizer
    )
    (_, first), (_, second), (_, third) = starts([again, again, other])
    assert "1 of 5 shards made here" in first
    assert "was ready, nothing to do" in second
    assert content(left) == content(reference)
    assert "6 of 6 shards made here" in third
    assert len(list(out.iterdir())) == 2


def test_nothing_is_dropped_in_silence(source: tuple[Path, corpus.Expected], reference: Path) -> None:
    expected = source[1]
    manifest = json.loads((reference / "manifest.json").read_text())
    assert (manifest["documents"], manifest["rejected"]) == (expected.documents, expected.rejected)
    rejected = [
        json.loads(line) for path in reference.glob("rejected-*") for line in path.read_text().splitlines()
    ]
    assert sum(entry.get("rows", 1) for entry in rejected) == sum(expected.rejected.values())
    found = {entry["document"]: (entry["reason"], entry["detail"]) for entry in rejected}
    assert found["raw/bad.jsonl:3"] == ("not_utf8", "byte 0xff at 10")
    assert found["raw/bad.jsonl:2"] == ("no_field", "has title")
    assert found["raw/renamed.parquet: rows 0 to 2"] == ("no_field", "has body")
    assert found["raw/numbers.parquet: rows 0 to 1"] == ("not_text", "is int64")
    assert found["raw/large.jsonl:901"] == ("repeats", "raw/large.jsonl:1")  # past a cut between two pieces
    assert found["raw/large.jsonl:8"] == ("repeats", "raw/bad.jsonl:9")  # the first by name remains


def test_the_index_says_where_each_document_lies(reference: Path, tokenizer: Path) -> None:
    manifest = Manifest.read(reference)
    decode = open_tokenizer(str(tokenizer))
    documents = 0
    about = json.loads((reference / "manifest.json").read_text())
    for shard, index in zip(manifest.shards, about["indexes"], strict=True):
        tokens = np.fromfile(reference / shard.file, manifest.dtype)
        assert len(tokens) == shard.tokens
        assert np.count_nonzero(tokens == manifest.end_of_document) == len(
            (reference / index["file"]).read_text().splitlines()
        )
        for line in (reference / index["file"]).read_text().splitlines():
            entry = json.loads(line)
            documents += 1
            assert tokens[entry["start"] + entry["tokens"] - 1] == manifest.end_of_document
            if entry["document"] == "raw/0.txt":
                text = corpus.texts(6, seed=1)[0]
                mine = tokens[entry["start"] :][: entry["tokens"]]
                assert mine.tolist() == decode.encode([text])[0].tolist()
    assert documents == manifest.documents


def test_the_tokens_are_those_of_data_prepare(tokenizer: Path, tmp_path: Path) -> None:
    expected = corpus.clean(tmp_path / "raw")
    start(command(tmp_path / "out", tmp_path / "raw", "--master", "local[2]", tokenizer__name=tokenizer))
    prepare([tmp_path / "raw"], tmp_path / "prepared", open_tokenizer(str(tokenizer)))
    ours, theirs = (
        sorted(documents(folder)) for folder in (run_folder(tmp_path / "out"), tmp_path / "prepared")
    )
    assert len(ours) == expected.documents
    assert ours == theirs


def documents(folder: Path) -> list[bytes]:
    """The tokens of each document."""
    manifest = Manifest.read(folder)
    found = []
    for shard in manifest.shards:
        tokens = np.fromfile(folder / shard.file, manifest.dtype)
        ends = np.flatnonzero(tokens == manifest.end_of_document) + 1
        found += [piece.tobytes() for piece in np.split(tokens, ends)[:-1]]
    return found


def test_the_trainer_reads_the_shards_unchanged(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(reference))
    settings = {
        "train.steps": 2,
        "train.batch_size": 8,
        "data.sequence_length": 64,
        "optimizer.warmup_steps": 1,
        "model.vocab_size": 640,
    }
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    assert main(["train", "tiny.toml", "--name", "two", "--dir", str(tmp_path), *given]) == 0
    final = json.loads((tmp_path / "runs" / "two" / "final.json").read_text())
    assert final["step"] == 2


def test_similar_documents_are_found_across_files(tmp_path: Path) -> None:
    some = corpus.texts(60, seed=9, words=400)
    near = [text.replace(" a1 ", " changed ", 1) + " once more" for text in some[:12]]
    chained = [text + " and again" for text in near[:4]]  # alike through the ones before
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(corpus.lines(some[:30] + near[6:]))
    (tmp_path / "raw" / "b.jsonl").write_bytes(corpus.lines(near[:6] + some[30:] + chained + some[50:]))
    made = starts(
        [
            command(
                tmp_path / f"out{cores}",
                tmp_path / "raw",
                "--master",
                f"local[{cores}]",
                dedup__method="fuzzy",
                output__shards=3,
            )
            for cores in (1, 3)
        ]
    )
    assert [status for status, _ in made] == [0, 0]
    folder = run_folder(tmp_path / "out1")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["rejected"] == {"alike": 16, "repeats": 10}
    assert manifest["documents"] == 60
    assert content(folder) == content(run_folder(tmp_path / "out3"))


def test_a_script_replaces_the_filters(tmp_path: Path) -> None:
    some = corpus.texts(40, seed=9)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(corpus.lines(some))
    script = tmp_path / "mine.py"
    script.write_text(
        "def documents(rows):\n"
        "    for number, row in enumerate(rows):\n"
        "        if '9-3' in row['text']:\n"
        "            yield {'id': row['id'], 'rejected': 'a three'}\n"
        "        elif '9-2' not in row['text']:\n"
        "            yield {'id': row['id'], 'text': row['text'].upper()}\n"
    )
    line = command(tmp_path / "out", tmp_path / "raw", "--master", "local[2]", filters__script=script)
    start(line)
    folder = run_folder(tmp_path / "out")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["rejected"] == {"script": 22}
    assert manifest["documents"] == 18
    assert b"GR\xc3\x9cSSE" not in b"".join(documents(folder))
    script.write_text(script.read_text().replace("upper", "lower"))
    start(line)
    assert len(list((tmp_path / "out").iterdir())) == 2  # another script is another run


def test_a_script_that_gives_other_documents_each_time_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(corpus.lines(corpus.texts(40, seed=9)))
    script = tmp_path / "mine.py"
    script.write_text(
        "import uuid\n"
        "def documents(rows):\n"
        "    for row in rows:\n"
        "        yield {'id': row['id'], 'text': row['text'] + str(uuid.uuid4())}\n"
    )
    line = command(tmp_path / "out", tmp_path / "raw", "--master", "local[2]", filters__script=script)
    start(line)
    folder = run_folder(tmp_path / "out")
    for name in ("_READY", "manifest.json", "parts/00001.json"):
        (folder / name).unlink()
    shown = start(line, status=1)
    assert "a script must give the same documents each time" in shown
    assert not (folder / "_READY").exists()


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
