"""A run between buckets: inputs by generation, each object of the output created once."""

import json
from pathlib import Path

import pytest

from tests.workload.preprocess import corpus, in_memory
from tests.workload.preprocess.starting import command, starts
from workload.errors import DataError, RunError
from workload.preprocess.config import InputConfig
from workload.preprocess.inputs import listed, look
from workload.preprocess.reading import rows
from workload.runs.store import Store, create_same, open_store


@pytest.fixture
def bucket(storage_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    return open_store(f"gs://bucket/{tmp_path.name}")


def check_run(bucket: Store, folder: Path, expected: corpus.Expected) -> None:
    """Manifest and inputs of the only run below out/, of the files of `folder` below raw/."""
    (ready,) = [name for name in bucket.list("out/") if name.endswith("_READY")]
    run = ready.removesuffix("_READY")
    manifest = json.loads(bucket.read(f"{run}manifest.json"))
    assert (manifest["documents"], manifest["rejected"]) == (expected.documents, expected.rejected)
    inputs = [json.loads(line) for line in bucket.read(f"{run}inputs.jsonl").splitlines()]
    assert len(inputs) == manifest["input_files"] == len(list(folder.iterdir()))
    versions = bucket.versions("raw/")  # type: ignore[attr-defined]
    _, _, file = inputs[0]["name"].rpartition("/")
    assert inputs[0]["version"] == str(versions[f"raw/{file}"][0])


def test_a_bucket_gives_the_run_that_a_folder_gives(
    bucket: Store, mixed: tuple[Path, corpus.Expected]
) -> None:
    folder, expected = mixed
    for path in folder.iterdir():
        bucket.write(f"raw/{path.name}", path.read_bytes())
    in_memory.run(f"{bucket.url}/out", f"{bucket.url}/raw/")
    check_run(bucket, folder, expected)


@pytest.mark.slow
@pytest.mark.prove
def test_spark_takes_config_and_tokenizer_from_a_bucket(
    bucket: Store, mixed: tuple[Path, corpus.Expected], tokenizer: Path
) -> None:
    folder, expected = mixed
    for path in folder.iterdir():
        bucket.write(f"raw/{path.name}", path.read_bytes())
    bucket.write("bpe/tokenizer.json", (tokenizer / "tokenizer.json").read_bytes())
    bucket.write("mine.toml", b'base = "text.toml"\n[output]\nsequence_length = 64\n')
    line = command(f"{bucket.url}/out", f"{bucket.url}/raw/", "--master", "local[2]")
    line = [f"{bucket.url}/mine.toml", *line[1:], "--set", f"tokenizer.name={bucket.url}/bpe"]
    (made, shown), (again, nothing) = starts([line, line])
    assert (made, again) == (0, 0), shown + nothing
    assert "was ready, nothing to do" in nothing
    check_run(bucket, folder, expected)


def test_an_object_that_was_replaced_after_it_was_listed_is_refused(bucket: Store) -> None:
    bucket.write("raw/a.txt", b"one")
    (item,), _ = listed([f"{bucket.url}/raw/"])
    (piece,) = look(item, InputConfig(), 2**20).pieces
    assert [row.text for row in rows(piece, InputConfig())] == ["one"]
    bucket.write("raw/a.txt", b"two")
    with pytest.raises(DataError, match=r"raw/a.txt: has changed since it was listed"):
        list(rows(piece, InputConfig()))


def test_a_large_object_is_read_in_ranges(bucket: Store) -> None:
    texts = corpus.texts(6000, seed=4)
    bucket.write("raw/a.jsonl", corpus.lines(texts))
    (item,), _ = listed([f"{bucket.url}/raw/"])
    pieces = look(item, InputConfig(), 2**21).pieces
    assert len(pieces) >= 3
    assert [row.text for piece in pieces for row in rows(piece, InputConfig())] == texts


def test_an_object_is_created_with_the_same_bytes_or_refused(store: Store) -> None:
    assert create_same(store, "a", b"one")
    assert not create_same(store, "a", b"one")
    with pytest.raises(RunError, match=r"/a: exists with other bytes than this start's\n    fix: "):
        create_same(store, "a", b"two")
    assert store.read("a") == b"one"
