"""Samples are split into streams: each once, the unusable rejected by name, the same bytes each time."""

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from workload.__main__ import main
from workload.data import split as split_module
from workload.data import stream as streams
from workload.data.sources import Sources
from workload.data.split import SplitRules, split
from workload.data.tokenizers import Bytes
from workload.errors import DataError
from workload.extract import packing
from workload.extract.packing import Shape
from workload.extract.ranges import cut
from workload.runs.store import FolderStore


def lines(path: Path, *entries: Any) -> Path:
    raw = (entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in entries)
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


def streamed(
    source: Path, out: Path, id_field: str = "", **rules: Any
) -> tuple[dict[str, int], list[streams.Stream], list[dict[str, Any]]]:
    result = split(Sources([source], id_field=id_field), FolderStore(out), Bytes(), SplitRules(**rules))
    aside = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    return result.rejected, [streams.read(str(out / name)) for name in result.streams], aside


def test_every_sample_is_in_one_stream_under_its_number(tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", *({"text": "x" * (n + 1)} for n in range(1100)))
    aside, result, _ = streamed(source, tmp_path / "out", streams=3)
    assert aside == {}
    assert [item.samples_N.tolist() for item in result] == [[*range(n, 1100, 3)] for n in range(3)]
    assert result[1].ids == tuple(f"{source}:{line}" for line in range(2, 1101, 3))
    assert result[2].document(1).tolist() == list(b"x" * 6)
    assert {item.about.source_sha256 for item in result} == {result[0].about.source_sha256}
    assert [item.about.number for item in result] == [0, 1, 2]


def test_what_cant_be_used_is_rejected_by_name(tmp_path: Path) -> None:
    source = lines(
        tmp_path / "s.jsonl",
        {"id": "a", "text": "fine"},
        b'{"id": "b", "text": ',
        {"id": "c", "text": ""},
        {"text": "whose?"},
        {"id": "a", "text": "again"},
        {"id": "d", "text": "l" * 1_000_000},
        {"id": "e", "text": 7},
        b'{"id": "f", "text": "\xff"}',
        b"",
        {"id": "g", "text": "f" * 100},
    )  # fmt: skip
    aside, (result,), named = streamed(source, tmp_path / "out", id_field="id", max_tokens=100)
    assert result.ids == ("a", "g")
    assert result.samples_N.tolist() == [0, 8]  # an empty line is no sample
    assert {item["where"]: item["reason"].split(":")[0] for item in named} == {
        f"{source}:2": "is not JSON",
        f"{source}:3": "is empty",
        f"{source}:4": "has no 'id' to name it",
        f"{source}:5": "is named 'a' like one before it",
        f"{source}:6": "has 1000000 tokens, more than 100",
        f"{source}:7": "has no text in 'text'",
        f"{source}:8": "is not JSON",
    }
    assert [item["sample"] for item in named] == [1, 2, 3, 4, 5, 6, 7]
    assert aside == {
        "is not JSON": 2, "is empty": 1, "has no 'id' to name it": 1, "is named like another": 1,
        "is too long": 1, "has no text in 'text'": 1,
    }  # fmt: skip
    assert result.about.rejected == 7


class Dropping(Bytes):
    """A tokenizer that makes no token of white space."""

    def encode_alone(self, texts: list[str]) -> list[NDArray[np.uint32]]:
        return super().encode_alone([text.strip() for text in texts])


def test_a_sample_of_which_no_token_is_left_is_empty(tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", {"text": " "}, {"text": "a"})
    result = split(Sources([source]), FolderStore(tmp_path / "out"), Dropping(), SplitRules())
    assert (result.samples, result.rejected) == (1, {"is empty": 1})


def test_nothing_is_cut_short_unless_asked(tmp_path: Path) -> None:
    long = "line\u2028 \x85 of a megabyte " * 45_000
    source = lines(tmp_path / "s.jsonl", b" \t\r", {"text": long}, b"", {"text": " "}, b"\r")
    aside, (result,), _ = streamed(source, tmp_path / "out")
    assert aside == {}
    assert bytes(result.document(0).tolist()).decode() == long
    assert result.ids == (f"{source}:2", f"{source}:4")
    assert len(result.document(0)) > 1_000_000


def test_a_file_that_is_no_text_and_a_name_that_cant_be_printed_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    contents = {"a.txt": b"a", "b.txt": b"caf\xe9", "c.txt": b"", "d.txt": b"\0", "e\n.txt": b"e"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    aside, (result,), named = streamed(folder, tmp_path / "out")
    assert result.ids == (str(folder / "a.txt"),)
    names = {"is no UTF-8 text": 2, "is an empty file": 1, "has a name that can't be printed": 1}
    assert aside == names
    assert [Path(item["where"]).name for item in named] == ["b.txt", "c.txt", "d.txt", "e\n.txt"]


def test_the_same_call_makes_the_same_bytes_and_another_is_refused(tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", *({"text": str(n) * 50} for n in range(9)))
    streamed(source, tmp_path / "out", streams=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    streamed(source, tmp_path / "out", streams=2)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    index = json.loads(before["streams.json"])
    del index["tokenizer"], index["tokenizer_sha256"]  # as an earlier version's
    (tmp_path / "out" / "streams.json").write_text(json.dumps(index))
    streamed(source, tmp_path / "out", streams=2)
    with pytest.raises(DataError, match=r"stream_000.safetensors: exists with other bytes"):
        streamed(source, tmp_path / "out", streams=3)


def test_progress_has_a_rate_and_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lines(tmp_path / "s.jsonl", *({"text": f"{n}"} for n in range(60)))
    reported: list[str] = []
    seconds = count()
    monkeypatch.setattr(split_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    split(Sources([source]), FolderStore(tmp_path / "out"), Bytes(), SplitRules(), reported.append)
    assert reported[0] == "3 samples, 1/s, 0 rejected"
    assert len([line for line in reported if "samples" in line]) == 4


def test_a_trial_takes_the_first_samples_of_each_stream(tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", *({"text": f"{n}"} for n in range(30)))
    _, result, _ = streamed(source, tmp_path / "out", streams=4, most_samples=2)
    assert [item.samples_N.tolist() for item in result] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", [], "no sample that can be used"),
        (b"\n\n", [], "no sample that can be used"),
        (
            b'{"text": "a"}\n',
            ["--streams", "2"],
            "1 samples leave stream 1 empty\n    fix: fewer --streams than 2",
        ),
        (
            b'{"n": 1, "body": "a", "ask": "b"}\n',
            [],
            "has no text in 'text'\n    fix: --field one of body, ask\n",
        ),
        (b'{"n": 1}\n', [], "has no text in 'text'\n    fix: mend it, or leave the file out\n"),
        (b'{"text": ""}\n{"body": "a"}\n', [], "is empty\n    fix: name other sources\n"),
        (b'{"text": "a"}\n', ["--streams", "0"], "--streams = 0: must lie between 1 and 9999"),
        (b"[" * 100_000, [], "is not JSON"),
        (b'{"text": "a"}\n', ["--streams", "99999999"], "--streams = 99999999: must lie between 1 and 9999"),
        (
            b'{"key": 7, "tags": [], "text": "a"}\n',
            ["--id", "nope"],
            "has no 'nope' to name it\n    fix: --id one of key, or leave --id out: its place ",
        ),
        (
            b'{"text": "a"}\n',
            ["--id", "name"],
            "has no 'name' to name it\n    fix: name it, or leave --id out: its place is its name then\n",
        ),
    ],
)
def test_bad_sources_are_told_in_one_message(
    content: bytes, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.jsonl").write_bytes(content)
    out = str(tmp_path / "out")
    assert main(["data", "streams", "--source", str(tmp_path / "s.jsonl"), "--out", out, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "streams.json").exists()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [({"id": "a", "text": "b"}, "named like another"), ({"text": "b"}, "no 'id' to name it")],
)
def test_samples_without_a_name_of_their_own_are_told_with_path_and_fix(
    entry: dict[str, str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines(tmp_path / "s.jsonl", {"id": "a", "text": "a"}, entry)
    line = ["data", "streams", "--source", str(source), "--out", str(tmp_path / "out")]
    assert main([*line, "--id", "id"]) == 0
    output = capsys.readouterr().out
    assert f"{reason} ({tmp_path}/out/rejected.jsonl names them)\n    fix: --id FIELD, unique" in output
    lines(tmp_path / "s.jsonl", {"text": "a"}, {"text": ""})
    assert main([*line[:-1], str(tmp_path / "new")]) == 0
    assert "fix: " not in capsys.readouterr().out


def test_a_column_that_could_name_samples_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a"], "key": [7]}), tmp_path / "rows.parquet")
    line = ["data", "streams", "--source", str(tmp_path / "rows.parquet"), "--out", str(tmp_path / "out")]
    assert main([*line, "--id", "nope"]) == 2
    assert "fix: --id one of key, or leave --id out" in capsys.readouterr().err


@pytest.mark.parametrize("cut_off", [0, 7, 100, -1])
def test_a_stream_that_is_damaged_is_named(cut_off: int, tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", {"text": "some text"})
    streamed(source, tmp_path / "out")
    path = tmp_path / "out" / "stream_000.safetensors"
    path.write_bytes(path.read_bytes()[:cut_off])
    with pytest.raises(DataError, match=r"stream_000.safetensors: is not a stream, or damaged"):
        streams.read(str(path))


@pytest.mark.parametrize(
    ("key", "place", "value", "message"),
    [
        ("tokens", 3, 257, "tokens outside the vocabulary of 257"),
        ("tokens", 3, -1, "tokens outside the vocabulary of 257"),
        ("offsets", 1, 0, "aren't contiguous"),
        ("offsets", 1, 10**9, "aren't contiguous"),
        ("offsets", -1, 500, "aren't contiguous"),
        ("id_offsets", 1, 0, "the same name|don't match"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    key: str, place: int, value: int, message: str, tmp_path: Path
) -> None:
    source = lines(tmp_path / "s.jsonl", *({"text": "some text"} for _ in range(3)))
    streamed(source, tmp_path / "out")
    path = tmp_path / "out" / "stream_000.safetensors"
    with safe_open(path, "numpy") as opened:
        about, arrays = opened.metadata(), {name: opened.get_tensor(name).copy() for name in opened.keys()}  # noqa: SIM118
    arrays[key][place] = value
    if key == "id_offsets":
        arrays[key][:] = value
    path.write_bytes(save(arrays, about))
    with pytest.raises(DataError, match=message):
        streams.read(str(path))


@pytest.mark.parametrize("name", [None, {"k": 1}, "", "\ud800"])
def test_a_name_that_is_none_is_none(name: Any, tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", {"id": name, "text": "x"}, {"id": 7, "text": "y"})
    _, (result,), named = streamed(source, tmp_path / "out", id_field="id")
    assert result.ids == ("7",)
    assert named[0]["reason"] == "has no 'id' to name it"


@given(
    st.lists(st.integers(1, 256), min_size=1, max_size=200),
    st.integers(1, 5),
    st.sampled_from([256, 384, 512]),
    st.integers(1, 5000),
)
def test_batches_and_ranges_hold_every_document_once_and_fit(
    lengths: list[int], rows: int, length: int, shard_tokens: int
) -> None:
    shape = Shape(rows, length)
    result = list(packing.batches(lengths, shape))
    inside = [document for batch in result for row in batch for document in row]
    assert sorted(inside) == list(range(len(lengths)))
    assert all(sum(lengths[item] for item in row) <= length for batch in result for row in batch)
    assert all(1 <= len(batch) <= rows for batch in result)
    ranges = list(cut(lengths, lengths, shape, 1, shard_tokens))
    assert [item.number for item in ranges] == list(range(1, len(ranges) + 1))
    assert [batch for item in ranges for batch in item.batches] == result
    tokens = [sum(lengths[document] for document in item.documents) for item in ranges]
    assert all(count >= shard_tokens for count in tokens[:-1])
    assert sum(tokens) == sum(lengths)


@pytest.mark.parametrize(
    "lengths", [[520] * 3000, [600, 1500] * 1500, [1100] * 3000, [9, 2000] * 1500, [64] * 9000]
)
def test_rows_are_chosen_that_pad_at_most_5_percent(lengths: list[int]) -> None:
    shape = packing.choose(lengths, 16384, divisor=4)
    assert shape.rows % 4 == 0
    assert shape.length % packing.LANES == 0
    rows = sum(len(batch) for batch in packing.batches(lengths, shape))
    assert rows * shape.length / sum(lengths) <= 1.05


def test_rows_with_large_blocks_are_preferred() -> None:
    """2176 tokens would do, in blocks of 128 or padded; 2304 are two blocks of 1152."""
    assert packing.choose([2100, 60, 60, 60] * 500, 16384).length == 2304
    assert packing.choose([2176] * 500, 16384).length == 2176, "no other length wastes so little"
