"""What people watch: a line a step with its duration, a spinner meanwhile; plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape


class Narrator:
    """Prints steps as they begin and end; errors and results go through it too, so that they don't mix."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    @classmethod
    def on_stderr(cls) -> Narrator:
        """For commands whose standard output belongs to somebody else."""
        return cls(Console(highlight=False, stderr=True))

    @contextmanager
    def step(self, text: str) -> Iterator[Note]:
        """Announce work; on leaving, say how long it took, and whether it failed."""
        note = Note()
        begun = time.monotonic()
        text = escape(text)
        try:
            if self.console.is_terminal:
                with self.console.status(f"{text} …"):
                    yield note
            else:
                self.console.print(f"  …  {text}", soft_wrap=True)
                yield note
        except BaseException:
            self._end("[red]fail[/red]", text, begun, note)
            raise
        self._end("[green] ok [/green]", text, begun, note)

    def line(self, text: str) -> None:
        """One line, as it is."""
        self.console.print(escape(text), soft_wrap=True)

    def status(self, root: Path, status: Mapping[str, Any]) -> None:
        """What a world holds: clock, nodes with hosts, requests, faults."""
        clock, requests = status["clock"], status["requests"]
        self.line(f"up in {root}; virtual time {clock['now']}, {clock['rate']:g} seconds a second")
        for node in status["nodes"]:
            self.line(f"  node {node['name']} in {node['zone']}: {node['state']}")
            for host in node["hosts"]:
                self.line(
                    f"    {host['name']:<24} {host['address']:<15} {'on' if host['running'] else 'off'}"
                )
        if not status["nodes"]:
            self.line("  no TPU nodes")
        self.line(f"  requests: {requests['validated']} validated, {requests['refused']} refused as invalid")
        for fault in status["faults"]:
            self.line(f"  fault {fault['id']}: observed {fault['observed']} times")

    def _end(self, mark: str, text: str, begun: float, note: Note) -> None:
        taken_s = time.monotonic() - begun
        said = f"  [dim]{escape(note.text)}[/dim]" if note.text else ""
        self.console.print(f"{mark} {text}  [cyan]{taken_s:.1f} s[/cyan]{said}", soft_wrap=True)


class Note:
    """What a step found out, printed behind its duration."""

    def __init__(self) -> None:
        self.text = ""
