"""Documents of lines, rows and compressed files, and everything that is none."""

import gzip
import json
from pathlib import Path

import pytest

from workload.__main__ import main
from workload.data.prepare import prepare
from workload.data.sources import Sources
from workload.errors import DataError


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        ('{"text": "a", "url": "b"}\n{"text": "c"}\n', ["a", "c"]),  # as C4 has them
        ('{"text": "a"}', ["a"]),
        ('{"name": "a"}\n', ['{"name": "a"}\n']),
        ('{\n  "text": "a"\n}\n', ['{\n  "text": "a"\n}\n']),
        ('["text"]\n["a"]\n', ['["text"]\n["a"]\n']),
    ],
)
def test_a_json_file_may_hold_lines(tmp_path: Path, content: str, documents: list[str]) -> None:
    (tmp_path / "c4-train.json").write_text(content)
    assert list(Sources([tmp_path]).documents()) == documents
    if len(documents) > 1:
        with pytest.raises(DataError, match=r"c4-train.json:1: has no text in 'body'"):
            list(Sources([tmp_path], "body").documents())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{\n", r"lines.jsonl:1: is not JSON"),
        ('{"text": "a"}\n[1]\n', r"lines.jsonl:2: has no text in 'text'"),
        ('{"body": "a"}\n', r"has no text in 'text'\n    fix: --field one of body"),
        ('[{"text": "a"}]\n', r"lines.jsonl:1: is a JSON array, not JSON lines\n    fix: .* jq -c '.\[\]'"),
        ('{"text": 3}\n', r"lines.jsonl:1: has no text in 'text'\n    fix: mend it, or leave the file out"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "lines.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        prepare([tmp_path / "lines.jsonl"], tmp_path / "out")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["alpaca_data.json", "alpaca_data.json.gz"])
def test_an_array_of_objects_is_refused_with_the_command_that_makes_lines(
    tmp_path: Path, name: str, indent: int | None
) -> None:
    raw = json.dumps([{"text": f"document {n}"} for n in range(4)], indent=indent).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    with pytest.raises(DataError) as refusal:
        list(Sources([tmp_path]).documents())
    problem, fix = str(refusal.value).splitlines()
    assert problem == f"{tmp_path / name}: is a JSON array, not JSON lines"
    assert fix.endswith(f"{tmp_path / name} | jq -c '.[]' > alpaca_data.jsonl, and name that")


def test_hidden_files_are_no_documents_and_are_counted(tmp_path: Path) -> None:
    """As `hf download --local-dir` leaves them, and a Mac."""
    source = tmp_path / "c4"
    (source / ".cache" / "huggingface").mkdir(parents=True)
    (source / ".cache" / "huggingface" / "train.jsonl.metadata").write_text("0123456789\n")
    (source / ".gitattributes").write_text("*.parquet filter=lfs\n")
    (source / "data").mkdir()
    (source / "data" / "._train.jsonl").write_bytes(b"\xfe\xff")
    (source / "data" / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    summary = prepare([source], tmp_path / "out")
    assert summary.documents == 2
    assert summary.rejected == {"hidden: 3 passed over": 1}
    named = tmp_path / "c4" / ".gitattributes"
    assert prepare([named], tmp_path / "named").documents == 1, "one that is named is read"


def test_a_number_of_more_digits_than_python_converts_is_no_bad_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": %s, "text": "one"}\n{"text": "two"}\n' % ("9" * 5000))
    (tmp_path / "b.json").write_text('{"id": %s, "text": "three"}\n' % ("9" * 5000))
    assert list(Sources([tmp_path]).documents()) == ["one", "two", "three"]


def test_a_table_with_the_column_twice_is_refused(tmp_path: Path) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    column = pyarrow.array(["one"])
    parquet.write_table(pyarrow.table([column, column], names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet: has two columns 'text'\n    fix: rename one of them"):
        list(Sources([tmp_path]).documents())


def test_gzip_is_read_whatever_is_inside_as_c4_is_distributed(tmp_path: Path) -> None:
    source = tmp_path / "c4"
    source.mkdir()
    for name, content in (
        ("c4-train.00000-of-01024.json.gz", '{"text": "one", "url": "u"}\n{"text": "two", "url": "v"}\n'),
        ("more.JSONL.GZ", '{"text": "three"}\n'),
        ("page.txt.gz", "four"),
    ):
        (source / name).write_bytes(gzip.compress(content.encode()))
    (source / "DATA.JSONL").write_text('{"text": "five"}\n')
    assert sorted(Sources([source]).documents()) == ["five", "four", "one", "three", "two"]
    assert prepare([source], tmp_path / "out").rejected == {}


@pytest.mark.parametrize("damage", ["no gzip", "cut short", "changed"])
def test_a_damaged_gzip_is_named(tmp_path: Path, damage: str) -> None:
    raw = gzip.compress(b'{"text": "a"}\n' * 9)
    raw = {"no gzip": b"{}\n", "cut short": raw[:-9], "changed": raw[:-8] + bytes(8)}[damage]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.json.gz").write_bytes(raw)
    with pytest.raises(DataError, match=r"a.json.gz: can't be read: .*\n    fix: let this user read it"):
        prepare([tmp_path / "text"], tmp_path / "out")


def test_every_file_passed_over_and_every_row_rejected_is_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "mixed"
    (source / "folder").mkdir(parents=True)
    (source / "rows.jsonl").write_text('{"text": "a"}\n{"text": ""}\n{"text": null}\n{"text": "b"}\n')
    (source / "nothing.jsonl").touch()
    (source / "picture.png").write_bytes(b"\x89PNG\0")
    (source / "to-a-folder").symlink_to(source / "folder")
    (source / "to-nothing").symlink_to(source / "gone")
    assert main(["data", "prepare", "--source", str(source), "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    named = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert {entry["where"].removeprefix(f"{source}/"): entry["reason"] for entry in named} == {
        "nothing.jsonl": "is an empty file",
        "picture.png": "is no UTF-8 text",
        "rows.jsonl:2": "is empty",
        "rows.jsonl:3": "is empty",
        "to-a-folder": "is a link to a folder",
        "to-nothing": "is a link to nothing",
    }
    assert "2 × is empty;" in output
    for name in ("nothing.jsonl", "picture.png", "to-a-folder", "to-nothing"):
        assert f"{source / name}: is" in output
    assert "2 documents, 4 tokens" in output


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(DataError, match=r"holds no UTF-8 text in 1 file: 1 × is an empty file\n"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "out")
