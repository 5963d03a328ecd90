"""Rows of each kind of input, line by line, whole and in pieces."""

import gzip
import os
from pathlib import Path

import pytest

from tests.workload.preprocess import corpus
from workload.errors import DataError
from workload.preprocess.config import FiltersConfig, InputConfig
from workload.preprocess.filters import problem
from workload.preprocess.inputs import Input, listed, look, opened, unreadable
from workload.preprocess.reading import InputRow, rows

SMALL = InputConfig(max_document_mb=1)


def read(path: Path, config: InputConfig = SMALL, piece_bytes: int = 2**40) -> list[InputRow]:
    (item,), _ = listed([str(path)])
    looked = look(item, config, piece_bytes)
    assert not looked.problem, looked.problem
    return [row for piece in looked.pieces for row in rows(piece, config)]


def reasons(path: Path, config: InputConfig = SMALL) -> list[tuple[str, str]]:
    return [(row.reason, row.detail) for row in read(path, config)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson.gz", "a.jsonl.zst"])
def test_lines_come_from_plain_and_compressed_files(tmp_path: Path, name: str) -> None:
    texts = corpus.texts(20, seed=3)
    raw = corpus.lines(texts)
    if name.endswith(".gz"):
        raw = gzip.compress(raw[:999]) + gzip.compress(raw[999:])  # of two members, as bgzip makes them
    if name.endswith(".zst"):
        corpus.write_zstandard(tmp_path / name, raw)
    else:
        (tmp_path / name).write_bytes(raw)
    result = read(tmp_path / name)
    assert [row.text for row in result] == texts
    assert (result[4].where, result[4].number) == (f"{name}:5", 5)


def test_an_array_of_objects_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[\n {"text": "one"}]')
    assert reasons(tmp_path / "a.json") == [("array", "cat a.json | jq -c '.[]' > a.jsonl, and name that")]
    (tmp_path / "b.json").write_text("[1, 2]")
    assert reasons(tmp_path / "b.json") == [("", "")]


def test_hidden_files_are_no_inputs(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    for name in (".cache/a.metadata", ".gitattributes", "a.jsonl"):
        (tmp_path / name).write_bytes(corpus.lines(["one"]))
    inputs, _ = listed([str(tmp_path)])
    assert [Path(item.name).name for item in inputs] == ["a.jsonl"]


def test_a_column_that_is_there_twice_is_rejected_with_its_rows(tmp_path: Path) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    column = pyarrow.array(["one", "two"])
    parquet.write_table(pyarrow.table([column, column], names=["text", "text"]), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet")
    assert (row.reason, row.detail, row.count) == ("no_field", "has text, text", 2)


def test_a_number_of_any_length_is_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": %s, "text": "one"}\n' % ("9" * 5000))
    assert [row.text for row in read(tmp_path / "a.jsonl")] == ["one"]


def test_a_window_that_zstandard_refuses_comes_with_a_way_to_pack_it_anew(tmp_path: Path) -> None:
    item = Input("big.jsonl.zst", "gs://b/big.jsonl.zst", 1)
    error = OSError("ZSTD decompress failed: Frame requires too much memory for decoding")
    assert "fix: pack it anew with a window up to 128 MiB: zstd -dc --long=31" in str(unreadable(item, error))


def test_pieces_give_the_rows_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(corpus.lines(corpus.texts(2000, seed=4)) + b"\n\nlast without an end")
    whole = read(path)
    (item,), _ = listed([str(path)])
    pieces = look(item, SMALL, 2**20).pieces
    assert len(pieces) >= 3
    assert (pieces[0].start, pieces[-1].end) == (0, path.stat().st_size)
    assert [row for piece in pieces for row in rows(piece, SMALL)] == whole
    assert len({row.where for row in whole}) == len(whole) == 2001
    assert (whole[-1].number, whole[-1].reason) == (2003, "not_json")


def test_a_line_longer_than_a_piece_is_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(corpus.lines(["x" * 1_100_000]))
    (item,), _ = listed([str(path)])
    assert [(piece.start, piece.end) for piece in look(item, SMALL, 2**20).pieces] == [(0, item.size_bytes)]


def test_row_groups_give_the_rows_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    corpus.write_parquet(path, "text", [*corpus.texts(90, seed=4), None, "  "], rows=10)
    (item,), _ = listed([str(path)])
    pieces = look(item, SMALL, 10_000).pieces
    assert len(pieces) >= 5
    result = [row for piece in pieces for row in rows(piece, SMALL)]
    assert result == read(path)
    assert [row.text for row in result[:90]] == corpus.texts(90, seed=4)
    assert [row.reason for row in result[90:]] == ["empty", "empty"]


def test_each_kind_of_bad_line_has_its_reason(tmp_path: Path) -> None:
    long = b'{"text": "' + b"x" * 1_000_001 + b'"}\n'
    longer = b'{"text": "' + b"x" * 8_000_000 + b'"}\n'  # not even looked into
    bad = [b"{\n", b"7\n", b'{"a": 1, "b": 2}\n', b'{"text": ["x"]}\n', b'{"text": "\xff"}\n', long, longer]
    last = b'{"text": "half \\ud83d a character"}\n'
    (tmp_path / "a.jsonl").write_bytes(b"".join(bad) + last)
    result = read(tmp_path / "a.jsonl")
    shown = [(row.number, row.reason, row.detail) for row in result]
    assert shown[0][:2] == (1, "not_json")
    assert shown[1:] == [
        (2, "not_json", "is a int, not an object"),
        (3, "no_field", "has a, b"),
        (4, "not_text", "'text' is a list"),
        (5, "not_utf8", "byte 0xff at 10"),
        (6, "too_long", "has 1000001 bytes"),
        (7, "too_long", "has more than 7048576 bytes"),
        (8, "", ""),
    ]
    assert result[7].text == "half \ufffd a character"


def test_each_kind_of_bad_file_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "latin1.txt").write_bytes("grüße".encode("latin1"))
    (tmp_path / "long.txt").write_text("x" * 1_000_001)
    (tmp_path / "fits.txt").write_text("x" * 1_000_000)
    assert reasons(tmp_path / "binary") == [("not_utf8", "holds a zero byte")]
    assert reasons(tmp_path / "latin1.txt") == [("not_utf8", "byte 0xfc at 2")]
    assert reasons(tmp_path / "long.txt") == [("too_long", "has more than 1000000 bytes")]
    assert reasons(tmp_path / "fits.txt") == [("", "")]


def test_format_overrides_a_files_name(tmp_path: Path) -> None:
    (tmp_path / "export").write_bytes(corpus.lines(["one", "two"]))
    assert len(read(tmp_path / "export")) == 1
    assert len(read(tmp_path / "export", InputConfig(format="lines"))) == 2


def test_a_file_that_changes_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    (item,), _ = listed([str(path)])
    (piece,) = look(item, SMALL, 2**20).pieces
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"a.txt: has changed since it was listed\n    fix: run again"):
        list(rows(piece, SMALL))
    with pytest.raises(DataError, match="has changed"):
        opened(piece.input)


def test_links_that_lead_to_no_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "raw" / "inside").mkdir(parents=True)
    (tmp_path / "raw" / "a.txt").write_text("one")
    (tmp_path / "raw" / "gone").symlink_to("nowhere")
    (tmp_path / "raw" / "folder").symlink_to("inside")
    result, links = listed([str(tmp_path / "raw")])
    assert [item.name for item in result] == ["raw/a.txt"]
    assert links == {"raw/gone": "is a link to nothing", "raw/folder": "is a link to a folder"}


@pytest.mark.parametrize(
    ("text", "rules", "figure"),
    [
        ("abc", {}, ""),
        (" ab ", {"min_characters": 3}, "has 2, at least 3 are needed"),
        (" ab ", {"min_characters": 2}, ""),
        ("a !?", {"min_alphanumeric_fraction": 0.4}, "has 0.333, below 0.4"),
        ("日本 語!", {"min_alphanumeric_fraction": 0.75}, ""),
        ("a\na\n\nb\na", {"max_repeated_line_fraction": 0.4}, "has 0.500, above 0.4"),
        ("a\nb", {"max_repeated_line_fraction": 0.0}, ""),
        ("a\ufffd", {"max_replacement_fraction": 0.4}, "has 0.500, above 0.4"),
        ("a\ufffd", {"max_replacement_fraction": 0.5}, ""),
    ],
)
def test_each_filter_names_itself_and_its_figure(text: str, rules: dict[str, float], figure: str) -> None:
    name = next(iter(rules), "") if figure else ""
    assert problem(text, FiltersConfig(**rules)) == (name, figure)  # type: ignore[arg-type]
