"""A script in place of the filters: what comes out is what it gave, and nothing is lost on the way."""

import pytest

from workload.errors import DataError
from workload.preprocess.config import InputConfig
from workload.preprocess.reading import InputRow
from workload.preprocess.script import applied, load

ROWS = [InputRow("a", n, f"a:{n}", text) for n, text in enumerate(["one", "two", "three"], 1)]
BAD = InputRow("a", 4, "a:4", reason="not_json")


def through(body: str, rows: list[InputRow]) -> list[tuple[str, str, str, int]]:
    source = "def documents(rows):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    result = applied(iter(rows), load(source.encode(), "mine.py"), "mine.py", InputConfig())
    return [(row.where, row.text, row.reason or row.detail, row.part) for row in result]


def test_what_a_script_gives_rejects_and_leaves_out_is_all_there() -> None:
    body = """for row in rows:
    if row["text"] == "one":
        yield {"id": row["id"], "text": "1"}
        yield {"id": row["id"], "text": "i"}
    elif row["text"] == "two":
        yield {"id": row["id"], "rejected": "too even"}"""
    assert through(body, [*ROWS, BAD]) == [
        ("a:1", "1", "", 0),
        ("a:1#1", "i", "", 1),
        ("a:2", "", "script", 0),
        ("a:4", "", "not_json", 0),
        ("a:3", "", "script", 0),
    ]


def test_a_script_may_look_at_many_rows_before_it_gives_any() -> None:
    result = through("yield from sorted(rows, key=lambda row: row['text'])", ROWS)
    assert [text for _, text, *_ in result] == ["one", "three", "two"]


def test_a_document_that_a_script_made_empty_is_rejected() -> None:
    assert through("for row in rows: yield {'id': row['id'], 'text': ' '}", ROWS[:1])[0][2] == "empty"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for row in rows: yield row['text']", r"mine.py: documents yielded one\n    fix: yield"),
        ("for row in rows: yield {'id': 'b:1', 'text': 'x'}", "documents yielded {'id': 'b:1'"),
        ("for row in rows: yield {'id': row['id']}", "documents yielded {'id': 'a:1'}"),
        ("yield 1 / 0", r"mine.py:2: ZeroDivisionError: division by zero\n    fix: mend the script"),
    ],
)
def test_a_script_that_fails_is_named_with_its_line(body: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        through(body, ROWS)


def test_a_file_that_is_no_script_is_refused() -> None:
    with pytest.raises(DataError, match=r"mine.py:2: SyntaxError"):
        load(b"x = 1\ny = = 2\n", "mine.py")
    with pytest.raises(DataError, match=r"mine.py: has no function `documents`\n    fix: define"):
        load(b"x = 1", "mine.py")
