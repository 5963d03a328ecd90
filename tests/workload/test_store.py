"""The same tests for every kind of store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workload.errors import StoreError
from workload.runs.errors import MissingObjectError
from workload.runs.store import FolderStore, Store, open_store


def test_what_is_written_is_read(store: Store) -> None:
    store.write("a/b.json", b"{}")
    assert store.read("a/b.json") == b"{}"
    store.write("a/b.json", b"\x00new")
    assert store.read("a/b.json") == b"\x00new"


def test_missing(store: Store) -> None:
    with pytest.raises(MissingObjectError, match="a/nothing: no such object"):
        store.read("a/nothing")
    store.delete("a/nothing")
    assert store.list("a/") == []


def test_list_is_sorted_and_holds_to_the_prefix(store: Store) -> None:
    for name in ("metrics/2", "metrics/10", "metrics/deep/1", "metricsx", "other"):
        store.write(name, b"x")
    assert store.list("metrics/") == ["metrics/10", "metrics/2", "metrics/deep/1"]
    assert store.list("metrics") == ["metrics/10", "metrics/2", "metrics/deep/1", "metricsx"]
    assert len(store.list("")) == 5


def test_sizes_are_those_of_the_objects(store: Store) -> None:
    store.write("shards/1", b"123")
    store.create("shards/2", b"12345")
    store.write("other", b"x")
    assert store.sizes("shards/") == {"shards/1": 3, "shards/2": 5}
    assert store.sizes("nothing/") == {}


def test_delete(store: Store) -> None:
    store.write("a/b/c", b"x")
    store.write("a/d", b"x")
    store.delete("a/b/c")
    assert store.list("") == ["a/d"]


def test_a_bucket_that_is_not_there_is_named(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    with pytest.raises(StoreError, match=r"gs://no-such-bucket/run/: can't be listed"):
        open_store("gs://no-such-bucket/run").list("")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"can't be written: Not a directory\n    fix: make room, or"):
        open_store(str(tmp_path / "file")).write("a/b", b"x")


def test_the_first_to_create_an_object_wins(store: Store) -> None:
    assert store.create("a/shard", b"first")
    assert not store.create("a/shard", b"second")
    assert store.read("a/shard") == b"first"
    assert store.list("") == ["a/shard"]


def test_of_many_at_once_one_creates(store: Store) -> None:
    contents = [bytes([n]) * 100_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda content: store.create("a/shard", content), contents))
    assert created.count(True) == 1
    assert store.read("a/shard") == contents[created.index(True)]
    assert store.list("") == ["a/shard"]


def test_a_part_is_read(store: Store) -> None:
    store.write("a", b"0123456789")
    assert store.read("a", 3, 6) == b"345"
    assert store.read("a", 7) == b"789"
    assert store.read("a", 0, 4) == b"0123"
    assert store.read("a", 8, 99) == b"89"


def test_a_part_that_begins_where_there_is_nothing_is_empty(store: Store) -> None:
    store.write("a", b"0123456789")
    store.write("empty", b"")
    assert [store.read("a", 10, 12), store.read("a", 99), store.read("empty", 0, 4)] == [b"", b"", b""]
    assert store.read("empty") == b""


def test_a_folder_that_is_removed_during_a_listing_is_passed_over(tmp_path: Path) -> None:
    """Another thread removes an incomplete checkpoint, whose folders go with their last file."""
    store = open_store(str(tmp_path))
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for number in range(20):
                store.write(f"a/{number}/b/c", b"x")
            for number in range(20):
                store.delete(f"a/{number}/b/c")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(300):
            store.sizes("a/")
    finally:
        stop.set()
        thread.join()


def test_a_name_that_several_write_at_once_is_written_by_each(tmp_path: Path) -> None:
    """Each renames its part, at any moment of another's write; 3,200 writes found what asked too early."""
    store = FolderStore(tmp_path)

    def write(number: int) -> None:
        for _ in range(400):
            store.write("status.json", str(number).encode())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert store.read("status.json") in [str(number).encode() for number in range(8)]
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_relative_folder_is_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("local/runs/first").url == f"{tmp_path}/local/runs/first"
