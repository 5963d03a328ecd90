"""Questions at a terminal: only a yes continues."""

import os
import pty

import pytest

from infra.engine.pulumi import confirm
from infra.errors import CommandError

END_OF_FILE = "\x04"  # Ctrl+D


@pytest.mark.parametrize("typed", ["y\n", "Y\n", "yes\n", " YES \n"])
def test_a_yes_continues(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(typed, monkeypatch)


@pytest.mark.parametrize("typed", ["\n", "n\n", "no\n", "yep\n", "1\n", END_OF_FILE])
def test_anything_else_changes_nothing(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="nothing was changed"):
        _answer(typed, monkeypatch)


def _answer(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child = pty.openpty()
    try:
        with os.fdopen(child) as terminal:
            monkeypatch.setattr("sys.stdin", terminal)
            os.write(parent, typed.encode())
            confirm("Delete it?", yes=False)
    finally:
        os.close(parent)
