"""Runs the commands that a user would type, keeps all they print, and shows the end of it if they fail."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import cast
from rehearsal.scenario.terminal import Terminal
from rehearsal.world import person

_SHOWN_LINES = 25


class Shell:
    """Commands in the program's folder; their output goes to numbered files in `logs`."""

    def __init__(self, folder: Path, logs: Path, title: str = "") -> None:
        self._folder, self._title = folder, title  # of recordings
        self.logs = logs
        self._numbers = itertools.count(1)
        self.account = ""  # who types; empty: whoever this process is
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self._followers: dict[Path, threading.Thread] = {}  # by log, who copies a recorded command's output
        logs.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float = 900.0,
        refused: str | None = None,
        prints: str = "",
    ) -> str:
        """Run to the end and return what it printed (both streams).

        ScenarioFailed unless it succeeds and prints a match of `prints`; with `refused`, unless it fails and
        prints a match of that.
        """
        child, log = self._begin(command)
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        text = log.read_text(errors="replace")
        output = f"{_shown(command)}\n{_tail(text)}\n  (all of it: {log})"
        if status is None:
            raise ScenarioFailed(f"not done within {timeout_s:.0f} s: {output}")
        if refused is None and status != 0:
            raise ScenarioFailed(f"exit status {status}: {output}")
        if refused is not None and status == 0:
            raise ScenarioFailed(f"should have been refused, but succeeded: {output}")
        pattern = prints if refused is None else refused
        if not re.search(pattern, text, re.IGNORECASE):
            raise ScenarioFailed(f"printed nothing that matches {pattern!r}: {output}")
        return text

    def typed(self, lines: str, timeout_s: float) -> str:
        """Type lines in a terminal and return all that it showed.

        The first logs in, the last logs out. ScenarioFailed unless each ends, with status 0.
        """
        login, *others, leave = lines.replace("\\\n", "").splitlines()
        log = self.logs / f"{next(self._numbers):03d}-{_slug(login.split())}.log"
        with contextlib.closing(Terminal(login, self._folder, self._environment(), log)) as terminal:
            for line in others:
                terminal.type(line, timeout_s)
            terminal.leave(leave)
        return log.read_text(errors="replace")

    def start(self, name: str, command: Sequence[str]) -> None:
        """Begin a command that continues beside the scenario, under a name."""
        if name in self._running:
            raise ScenarioFailed(f"{name} runs already")
        # A scenario that a shell began with & ignores SIGINT, and so would all that it starts.
        self._running[name] = self._begin(
            command, before=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), recorded=True
        )

    def _begin(
        self, command: Sequence[str], before: Callable[[], object] | None = None, recorded: bool = False
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command in its own session, with a file for its output; `recorded`: also with times.

        `before` is run in the child; not from several threads at once, which fork badly.
        """
        log = self.logs / f"{next(self._numbers):03d}-{_slug(command)}.log"
        with log.open("wb") as sink:
            child = subprocess.Popen(
                list(command),
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if recorded else sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=before,
            )
        if recorded:
            assert child.stdout is not None
            recording = log.with_suffix(".cast").open("w", encoding="utf-8")
            follower = cast.follow(child.stdout, log.open("ab"), recording, _shown(command[-1:]), self._title)
            self._followers[log] = follower
        return child, log

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **(person.login(self.account) if self.account else {})}

    def stop(
        self, name: str, *, status: int, prints: str, timeout_s: float = 120.0, interrupt: bool = True
    ) -> str:
        """Send it SIGINT, as Ctrl+C does, or wait for its end; returns what it printed.

        ScenarioFailed unless it ends with that status and has printed a match.
        """
        if name not in self._running:
            raise ScenarioFailed(f"{name} doesn't run: it was not begun")
        child, log = self._running.pop(name)
        if interrupt:
            os.killpg(child.pid, signal.SIGINT)
        try:
            ended: int | None = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            ended = None
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._followers[log].join(10)
        text = log.read_text(errors="replace")
        output = f"{name}\n{_tail(text)}\n  (all of it: {log})"
        if ended != status:
            raise ScenarioFailed(f"ended with {ended} and not {status}: {output}")
        if not re.search(prints, text, re.IGNORECASE):
            raise ScenarioFailed(f"printed nothing that matches {prints!r}: {output}")
        return text

    def end(self) -> None:
        """Kill what still continues beside the scenario."""
        for child, _ in self._running.values():
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        self._running.clear()

    def ssh(self, hosts: Sequence[str], line: str, *, timeout_s: float, prints: str) -> list[str]:
        """Run a line on every host at once; what each printed."""

        def on_host(host: str) -> str:
            done = subprocess.run(
                # Patient: where hosts boot beside it, a login takes long here.
                ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60", host, line],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            if done.returncode != 0:
                raise ScenarioFailed(
                    f"{host}: exit status {done.returncode} of `{line}`\n{_tail(done.stdout + done.stderr)}"
                )
            if not re.search(prints, done.stdout):
                raise ScenarioFailed(
                    f"{host}: `{line}` printed nothing that matches {prints!r}: {done.stdout!r}"
                )
            return done.stdout

        with ThreadPoolExecutor(16) as pool:
            try:
                return list(pool.map(on_host, hosts))
            except subprocess.TimeoutExpired as slow:
                raise ScenarioFailed(f"ssh took longer than {timeout_s:.0f} s: {line}") from slow


def _slug(command: Sequence[str]) -> str:
    words = [Path(word).name for word in command[:6] if not word.startswith("-")]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")[:40]


def _shown(command: Sequence[str]) -> str:
    return " ".join(command)


def _tail(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-_SHOWN_LINES:])
