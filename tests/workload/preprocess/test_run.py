"""Whole runs, with Spark's part in this process: the output, which the trainer reads, and refusals."""

import gzip
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.workload.preprocess import corpus
from tests.workload.preprocess.in_memory import Context, run
from tests.workload.preprocess.starting import command, content, run_folder
from workload.__main__ import main
from workload.data.prepare import prepare
from workload.data.tokenizers import open_tokenizer
from workload.data.tokens import Manifest
from workload.errors import DataError, RunError, WorkloadError


def rejected(folder: Path) -> dict[str, tuple[str, str]]:
    """Reason and detail of each rejected document."""
    lines = [line for path in folder.glob("rejected-*") for line in path.read_text().splitlines()]
    entries = [json.loads(line) for line in lines]
    return {entry["document"]: (entry["reason"], entry["detail"]) for entry in entries}


def documents(folder: Path) -> list[bytes]:
    """The tokens of each document."""
    manifest = Manifest.read(folder)
    pieces = []
    for shard in manifest.shards:
        tokens = np.fromfile(folder / shard.file, manifest.dtype)
        ends = np.flatnonzero(tokens == manifest.end_of_document) + 1
        pieces += [piece.tobytes() for piece in np.split(tokens, ends)[:-1]]
    return pieces


def test_the_same_bytes_whatever_the_partitions_places_and_shuffles(
    source: Path, tokenizer: Path, reference: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "raw"
    shutil.copytree(source, moved)
    for number, folder in enumerate((source, moved)):
        out = tmp_path / f"out{number}"
        context = Context(3 + number, seed=number + 1)
        run(out, folder, context, tokenizer__name=tokenizer, runtime__partitions=5 * number)
        assert content(run_folder(out)) == content(reference)
        assert run_folder(out).name == reference.name


def test_a_start_resumes_and_the_one_after_it_has_nothing_to_do(
    source: Path, tokenizer: Path, reference: Path, tmp_path: Path
) -> None:
    unfinished = tmp_path / "out" / reference.name
    shutil.copytree(reference, unfinished)
    for name in ("_READY", "manifest.json", "parts/00003.json"):
        (unfinished / name).unlink()
    next(unfinished.glob("tokens-00003-*")).unlink()
    lines: list[str] = []
    made = [
        run(
            tmp_path / "out",
            source,
            progress=lines.append,
            tokenizer__name=tokenizer,
            output__shards=count,
        ).made
        for count in (5, 5, 6)
    ]
    assert (made, lines) == ([1, 0, 6], ["resumes: 4 of 5 shards are there"])
    assert content(unfinished) == content(reference)
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_nothing_is_dropped_in_silence(mixed: tuple[Path, corpus.Expected], reference: Path) -> None:
    _, expected = mixed
    manifest = json.loads((reference / "manifest.json").read_text())
    assert (manifest["documents"], manifest["rejected"]) == (expected.documents, expected.rejected)
    lines = [line for path in reference.glob("rejected-*") for line in path.read_text().splitlines()]
    assert sum(json.loads(line).get("rows", 1) for line in lines) == sum(expected.rejected.values())
    result = rejected(reference)
    assert result["raw/bad.jsonl:3"] == ("not_utf8", "byte 0xff at 10")
    assert result["raw/bad.jsonl:2"] == ("no_field", "has title")
    assert result["raw/renamed.parquet: rows 0 to 2"] == ("no_field", "has body")
    assert result["raw/numbers.parquet: rows 0 to 1"] == ("not_text", "is int64")
    assert result["raw/large.jsonl:901"] == ("repeats", "raw/large.jsonl:1")  # past a cut between two pieces
    assert result["raw/large.jsonl:8"] == ("repeats", "raw/bad.jsonl:9")  # the first by name remains
    assert result["raw/large.jsonl:908"] == ("repeats", "raw/bad.jsonl:9")  # of three, each names the first


def test_the_index_says_where_each_document_lies(reference: Path, tokenizer: Path) -> None:
    manifest = Manifest.read(reference)
    decode = open_tokenizer(str(tokenizer))
    count = 0
    about = json.loads((reference / "manifest.json").read_text())
    for shard, index in zip(manifest.shards, about["indexes"], strict=True):
        tokens = np.fromfile(reference / shard.file, manifest.dtype)
        assert len(tokens) == shard.tokens
        entries = [json.loads(line) for line in (reference / index["file"]).read_text().splitlines()]
        assert np.count_nonzero(tokens == manifest.end_of_document) == len(entries)
        for entry in entries:
            count += 1
            assert tokens[entry["start"] + entry["tokens"] - 1] == manifest.end_of_document
            if entry["document"] == "raw/0.txt":
                text = corpus.texts(6, seed=1)[0]
                own = tokens[entry["start"] :][: entry["tokens"]]
                assert own.tolist() == decode.encode([text])[0].tolist()
    assert count == manifest.documents


def test_the_tokens_are_those_of_data_prepare(tokenizer: Path, tmp_path: Path) -> None:
    expected = corpus.clean(tmp_path / "raw")
    run(tmp_path / "out", tmp_path / "raw", tokenizer__name=tokenizer)
    prepare([tmp_path / "raw"], tmp_path / "prepared", open_tokenizer(str(tokenizer)))
    made, prepared = (documents(folder) for folder in (run_folder(tmp_path / "out"), tmp_path / "prepared"))
    assert len(made) == expected.documents
    assert sorted(made) == sorted(prepared)


def test_the_trainer_reads_the_shards_unchanged(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(reference))
    shards = json.loads((reference / "manifest.json").read_text())["shards"]
    assert {*shards[0]} == {"file", "tokens", "sha256"}, "as earlier versions of the trainer take them"
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


def similar(folder: Path) -> Path:
    """Sixty documents, sixteen that are like one of them and ten that repeat one."""
    texts = corpus.texts(60, seed=9, words=400)
    near = [text.replace(" a1 ", " changed ", 1) + " once more" for text in texts[:12]]
    chained = [text + " and again" for text in near[:4]]  # alike through the ones before
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(corpus.lines(texts[:30] + near[6:]))
    (folder / "b.jsonl").write_bytes(corpus.lines(near[:6] + texts[30:] + chained + texts[50:]))
    return folder


def test_similar_documents_are_found_across_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(StorageLevel=SimpleNamespace(DISK_ONLY=None)))  # type: ignore[arg-type]
    raw = similar(tmp_path / "raw")
    for cores in (1, 3):
        run(tmp_path / f"out{cores}", raw, Context(cores, cores), dedup__method="fuzzy", output__shards=3)
    folder = run_folder(tmp_path / "out1")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["rejected"] == {"alike": 16, "repeats": 10}
    assert manifest["documents"] == 60
    assert content(folder) == content(run_folder(tmp_path / "out3"))


def test_a_script_replaces_the_filters(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(corpus.lines(corpus.texts(40, seed=9)))
    script = tmp_path / "mine.py"
    script.write_text(
        "def documents(rows):\n"
        "    for number, row in enumerate(rows):\n"
        "        if '9-3' in row['text']:\n"
        "            yield {'id': row['id'], 'rejected': 'a three'}\n"
        "        elif '9-2' not in row['text']:\n"
        "            yield {'id': row['id'], 'text': row['text'].upper()}\n"
    )
    run(tmp_path / "out", tmp_path / "raw", filters__script=script)
    folder = run_folder(tmp_path / "out")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["rejected"] == {"script": 22}
    assert manifest["documents"] == 18
    assert b"GR\xc3\x9cSSE" not in b"".join(documents(folder))
    script.write_text(script.read_text().replace("upper", "lower"))
    run(tmp_path / "out", tmp_path / "raw", filters__script=script)
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
    run(tmp_path / "out", tmp_path / "raw", filters__script=script)
    folder = run_folder(tmp_path / "out")
    for name in ("_READY", "manifest.json", "parts/00001.json"):
        (folder / name).unlink()
    with pytest.raises(RunError, match="a script must give the same documents each time"):
        run(tmp_path / "out", tmp_path / "raw", filters__script=script)
    assert not (folder / "_READY").exists()


def cut(raw: bytes) -> bytes:
    return raw[:-400]


def unusable(folder: Path) -> None:
    """Inputs by kind of refusal."""
    for name in ("none", "white", "broken", "gzip", "zstandard", "parquet", "script"):
        (folder / name).mkdir()
    (folder / "white" / "a.txt").write_text(" \n")
    (folder / "white" / "b.jsonl").write_text('{"text": ""}\n\n')
    good, bad = corpus.lines(corpus.texts(8, seed=1)), b'{"body": "the schema changed half way"}\n' * 8
    (folder / "broken" / "a.jsonl").write_bytes(good + bad)
    lines = corpus.lines(corpus.texts(99, 1))
    (folder / "gzip" / "a.jsonl.gz").write_bytes(cut(gzip.compress(lines)))
    zstandard = folder / "zstandard" / "b.jsonl.zst"
    corpus.write_zstandard(zstandard, lines)
    zstandard.write_bytes(cut(zstandard.read_bytes()))
    (folder / "parquet" / "c.parquet").write_bytes(b"PAR1 and no more")
    (folder / "script" / "a.txt").write_text("good")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "holds no file\n    fix: name a folder or prefix that holds text"),
        ("white", "no document is accepted, of 2 files: 2 × empty"),
        ("broken", "input.max_unusable_fraction = 0.1: 8 of 16 can't be used: 8 × no_field"),
        ("gzip", "/gzip/a.jsonl.gz: can't be read: Compressed file ended"),
        ("zstandard", "/zstandard/b.jsonl.zst: can't be read: "),
        ("parquet", "/parquet/c.parquet: can't be read: "),
        ("script", "mine.py:3: KeyError: 'title'\n    fix: mend the script"),
        ("nowhere", "/nowhere: no such file or folder"),
    ],
)
def test_inputs_that_hold_no_document_are_refused_and_nothing_is_written(
    tmp_path: Path, kind: str, message: str
) -> None:
    unusable(tmp_path)
    script = tmp_path / "mine.py"
    script.write_text("def documents(rows):\n    for row in rows:\n        yield row['title']\n")
    settings = {"filters__script": script} if kind == "script" else {}
    with pytest.raises(DataError) as refused:
        run(tmp_path / "out", tmp_path / kind, **settings)
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    unusable(tmp_path)
    with pytest.raises(DataError, match=r"two files are called white/a.txt"):
        run(tmp_path / "out", f'["{tmp_path}/white", "{tmp_path}/white"]')


def test_storage_that_refuses_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("good")
    with pytest.raises(WorkloadError, match=r"/proc/out/.*can't be written: No such file or directory"):
        run("/proc/out", tmp_path / "raw.txt")


def test_a_run_needs_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preprocess", *command(tmp_path / "out", tmp_path, "--local")]) == 1  # no Spark here
    assert 'fix: in a checkout: "$(tools/setup.sh spark' in capsys.readouterr().err
