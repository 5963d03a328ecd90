"""Progress on the console: a line per step with its duration, with a spinner on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from views.console import Terminal

# Without a terminal, the interval between two interim results of a step.
_PLAIN_EVERY_S = 15.0


class Note:
    """Interim result of a step: shown while it runs, and behind its duration at the end."""

    def __init__(self, show: Callable[[str], None] = lambda text: None) -> None:
        self._text = ""
        self._show = show

    @property
    def text(self) -> str:
        """The newest finding."""
        return self._text

    @text.setter
    def text(self, text: str) -> None:
        self._text = text
        self._show(text)


class Narrator:
    """Prints steps as they begin and end; errors and results go through it too, so that they don't mix."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Terminal(highlight=False)

    @classmethod
    def on_stderr(cls) -> Narrator:
        """Return a narrator for commands whose standard output is another program's."""
        return cls(Terminal(highlight=False, stderr=True))

    @contextmanager
    def step(self, text: str) -> Iterator[Note]:
        """Print a step's beginning and its interim results; at the end its duration, and ok or fail."""
        begun = time.monotonic()
        text = escape(text)
        if self.console.is_terminal:
            with self.console.status(f"{text} …") as status:
                note = Note(lambda detail: status.update(f"{text} …  [dim]{escape(detail)}[/dim]"))
                with self._ending(text, begun, note):
                    yield note
        else:
            self._print(f"  …  {text}")
            note = Note(self._now_and_then())
            with self._ending(text, begun, note):
                yield note

    def line(self, text: str) -> None:
        """Print one line unchanged."""
        self._print(escape(text))

    def status(self, root: Path, status: Mapping[str, Any]) -> None:
        """Print the contents of a world: clock, nodes with hosts, requests, faults."""
        clock, requests = status["clock"], status["requests"]
        self.line(f"up in {root}; virtual time {clock['now']}, {clock['rate']:g} seconds a second")
        for node in status["nodes"]:
            self.line(f"  node {node['name']} in {node['zone']}: {node['state']}")
            for host in node["hosts"]:
                power = "on" if host["running"] else "off"
                self.line(f"    {host['name']:<24} {host['address']:<15} {power}")
        for name, cluster in status["control_planes"].items():
            self.line(
                f"  control plane of {name.rpartition('/')[2]}: {cluster['state']} {cluster['message']}"
            )
        if not status["nodes"]:
            self.line("  no TPU nodes")
        self.line(f"  requests: {requests['validated']} validated, {requests['refused']} refused as invalid")
        for drop in status["dropped"]:
            way = f"{drop['source']} to {drop['destination']}, {drop['protocol']} {drop['port']}"
            self.line(f"  dropped by the firewall: {way}, {drop['packets']} packets")
        for fault in status["faults"]:
            self.line(f"  fault {fault['id']}: observed {fault['observed']} times")

    @contextmanager
    def _ending(self, text: str, begun: float, note: Note) -> Iterator[None]:
        mark = "[red]fail[/red]"
        try:
            yield
            mark = "[green] ok [/green]"
        finally:
            shown = f"  [dim]{escape(note.text)}[/dim]" if note.text else ""
            self._print(f"{mark} {text}  [cyan]{time.monotonic() - begun:.1f} s[/cyan]{shown}")

    def _now_and_then(self) -> Callable[[str], None]:
        last = time.monotonic()

        def show(text: str) -> None:
            nonlocal last
            if time.monotonic() - last > _PLAIN_EVERY_S:
                last = time.monotonic()
                self._print(f"     {escape(text)}")

        return show

    def _print(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)
