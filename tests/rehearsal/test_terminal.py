"""Lines typed in a terminal: each waits for its end, and one that fails fails the scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.shell import Shell

LOGIN = "env PS1='you@login-0:~$ ' bash --norc -i"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, tmp_path / "logs")


def test_lines_are_typed_one_after_the_other_also_in_a_shell_within(shell: Shell, tmp_path: Path) -> None:
    typed = [
        *(LOGIN, "cat > /dev/null < /dev/null; name=outer"),
        *(LOGIN, "echo $name. > file", "exit"),
        *("echo $name >> \\", "  file", "exit"),
    ]
    shown = shell.typed("\n".join(typed), 60.0)
    assert (tmp_path / "file").read_text() == ".\nouter\n"
    assert "you@login-0:~$ echo $name. > file" in shown


def test_a_line_that_fails_fails_with_what_it_printed(shell: Shell) -> None:
    with pytest.raises(ScenarioFailed, match=r"(?s)`ls nothing` ended with 2.*No such file.*all of it: "):
        shell.typed(f"{LOGIN}\nls nothing\nexit\n", 60.0)


def test_a_line_that_doesnt_end_is_given_up(shell: Shell) -> None:
    with pytest.raises(ScenarioFailed, match=r"the end of `cat`: not within 0.5 s"):
        shell.typed(f"{LOGIN}\ncat\nexit\n", 0.5)


def test_a_login_that_ends_at_once_is_told(shell: Shell) -> None:
    with pytest.raises(ScenarioFailed, match=r"(?s)a prompt: the login ended.*refused"):
        shell.typed("echo refused\nexit\n", 60.0)
