"""Text of others does nothing to a terminal, whichever way it is printed."""

import io
import sys
from typing import Any

import pytest
from rich.table import Table

from tests.hostile import EXAMPLES, TEXTS, fuzz
from views.console import Terminal
from views.terminal import Guarded, clean, guard, unguarded

HOSTILE = [
    ("\x1b[2Jx", "\\u001b[2Jx"), ("\x9b2J", "\\u009b2J"), ("good\rbad", "good\\u000dbad"),
    ("a\u202eb", "a\\u202eb"), ("\x1b]0;owned\x07", "\\u001b]0;owned\\u0007"),
    ("\u2066\u200f", "\\u2066\\u200f"), ("\udcff.txt", "\\udcff.txt"),
    ("\x1b\x1b[0m[2J", "\\u001b[2J"), ("\x7f\x08", "\\u007f\\u0008"),
]  # fmt: skip
CONTROLS = {chr(number) for number in (*range(32), *range(0x7F, 0xA0))} - {"\n", "\t"}


@pytest.mark.parametrize(("text", "expected"), HOSTILE)
def test_control_characters_are_written_and_not_obeyed(text: str, expected: str) -> None:
    assert clean(text) == clean(expected) == expected


def test_an_honest_traceback_becomes_plain() -> None:
    coloured = '  File \x1b[35m"a.py"\x1b[0m, line \x1b[1;38:5:2m7\x1b[m\r\n\tValueError: naïve — ✓\n'
    assert clean(coloured) == '  File "a.py", line 7\n\tValueError: naïve — ✓\n'


@pytest.mark.parametrize(("text", "expected"), HOSTILE)
def test_what_is_printed_and_logged_is_clean(
    text: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    guard()
    guard()
    print(text)
    sys.stdout.writelines([text])
    print(text, file=sys.stderr)
    assert not isinstance(unguarded(sys.stdout), Guarded)
    output = capsys.readouterr()
    assert (output.out, output.err) == (f"{expected}\n{expected}", f"{expected}\n")


def printed(cell: Any, **more: Any) -> str:
    file = io.StringIO()
    table = Table(box=None)
    table.add_column("why", no_wrap=True)
    table.add_row(cell)
    Terminal(file=file, width=200, **more).print(table)
    return file.getvalue()


@pytest.mark.parametrize(("text", "expected"), HOSTILE)
def test_a_table_keeps_its_own_styles_alone(text: str, expected: str) -> None:
    from rich.text import Text

    output = printed(Text(text, "red"), force_terminal=True)
    assert "\x1b[31m" in output
    assert clean(output) == clean(printed(Text(text), force_terminal=False))
    assert expected in clean(printed(Text(clean(text), "red"), force_terminal=True))


@EXAMPLES
def test_no_text_gets_a_control_character_through(examples: int) -> None:
    def check(text: str) -> None:
        for output in (clean(text), printed(text)):
            assert not CONTROLS & set(output)
            output.encode()

    fuzz(examples, TEXTS, check)
