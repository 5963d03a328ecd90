"""The live view: in a terminal, as lines where there is none, and as a page on this machine."""

import html
import sys
import threading
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fleet import show
from fleet.controller import Look
from fleet.errors import FleetError
from fleet.show import Rates, Row
from fleet.state import Condition

_EVENTS = 8
_ALIVE_S = 3600.0  # without a terminal: that nothing has changed is said this often


class Dashboard:
    """Shows one look after another.

    A terminal is drawn anew; anywhere else what happened is a line each, and the summary where it changes.
    """

    def __init__(self, title: str, console: Console | None = None):
        self._title = title
        self._console = console or Console()
        self._rates, self._events = Rates(), deque[str](maxlen=_EVENTS)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self.page = "nothing was seen yet"
        self._printed, self._printed_s = "", 0.0

    def __enter__(self) -> "Dashboard":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, look: Look) -> None:
        """One more look."""
        found = show.rows(look, self._rates)
        clock = datetime.fromtimestamp(look.view.at_s).strftime("%H:%M:%S")
        fresh = [f"{clock} {event}" for event in look.events]
        self._events.extend(fresh)
        lines = [show.summary(found), *self._remarks(look)]
        self.page = _page(self._title, clock, found, lines, self._events)
        if self._live:
            self._live.update(self._drawn(clock, found, lines), refresh=True)
        else:
            # Nobody reads the same line 1,440 times a day.
            changed = lines[0] != self._printed or look.view.at_s - self._printed_s >= _ALIVE_S
            if changed:
                self._printed, self._printed_s = lines[0], look.view.at_s
            summary = [f"{clock} {lines[0]}", *lines[1:]] if changed or fresh else []
            print(*fresh, *summary, sep="\n", end="\n" * bool(fresh or summary), flush=True)

    def _remarks(self, look: Look) -> list[str]:
        said = []
        for zone, view in sorted(look.view.zones.items()):
            if view.failure:
                said.append(f"{zone} didn't answer: {view.failure.kind}: {view.failure.message}")
        if look.view.failure:
            said.append(f"the bucket didn't answer: {look.view.failure.kind}: {look.view.failure.message}")
        said += show.remedies(look)
        if look.orphans:
            said.append(f"orphans, asked for by nobody: {', '.join(one.name for one in look.orphans)}")
        dollars, unknown = show.price_so_far(look)
        without = f"; without {len(unknown)} whose price the catalog doesn't know" if unknown else ""
        said.append(f"${dollars:,.2f} so far, since the creation of the nodes that are there{without}")
        if look.decisions and all(one.condition is Condition.DONE for one in look.decisions):
            said.append("all are done, and paid for until they are deleted: python -m fleet delete")
        return said

    def _drawn(self, clock: str, found: Sequence[Row], lines: Sequence[str]) -> Group:
        table = Table(title=f"{self._title}, {clock}", title_justify="left", box=None, pad_edge=False)
        for name in show.HEAD:
            table.add_column(name, no_wrap=name != "why", justify="right" if name in _NUMBERS else "left")
        # What needs somebody comes first where not all fit.
        room = max(5, self._console.height - len(lines) - _EVENTS - 6)
        order = (
            sorted(found, key=lambda row: _URGENCY.index(Condition(row.condition)))
            if len(found) > room
            else found
        )
        for row in order[:room]:
            style = show.MARKS[Condition(row.condition)]
            table.add_row(*(Text(cell, style if n == 3 else "") for n, cell in enumerate(show.cells(row))))
        more = [f"… and {len(found) - room} more"] if len(found) > room else []
        foot = "Ctrl+C leaves the fleet as it is."
        return Group(table, *(Text(line) for line in (*more, *lines, "", *self._events, foot)))


_NUMBERS = {"samples", "shards", "size", "samples/s", "left"}
_URGENCY = [
    Condition.FAILED, Condition.RECOVERING, Condition.UNKNOWN, Condition.STARTING, Condition.WORKING,
    Condition.DONE,
]  # fmt: skip


def _page(title: str, clock: str, found: Sequence[Row], lines: Sequence[str], events: Sequence[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in show.HEAD)
    body = "".join(
        f"<tr class={row.condition}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in show.cells(row))
        for row in found
    )
    said = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    happened = "".join(f"<li>{html.escape(event)}</li>" for event in reversed(events))
    return (
        "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=5>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)} <small>{clock}</small></h1><ul>{said}</ul>"
        f"<table><tr>{head}</tr>{body}</table><h2>What happened</h2><ul>{happened}</ul>"
    )


_STYLE = """
body{font:14px system-ui,sans-serif;margin:2rem;color:#222}small{color:#777;font-weight:normal}
ul{list-style:none;padding:0}table{border-collapse:collapse}td,th{padding:.25rem .75rem;text-align:left;
border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}
td:not(:last-child){white-space:nowrap}
td:nth-child(n+5):nth-child(-n+9),th:nth-child(n+5):nth-child(-n+9){text-align:right}
td:nth-child(4){font-weight:600}.working td:nth-child(4){color:#18794e}.done td:nth-child(4){color:#0b68cb}
.starting td:nth-child(4){color:#946800}.recovering td:nth-child(4){color:#8e4ec6}
.failed td:nth-child(4){color:#ce2c31}.unknown td:nth-child(4){color:#777}
"""


def serve(dashboard: Dashboard, port: int) -> ThreadingHTTPServer:
    """The page at http://localhost:PORT, for this machine alone.

    Raises:
        FleetError: the port is taken, or not for this user.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = dashboard.page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nobody asks who looked."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        fix = "another port, or --port 0 for any free one"
        raise FleetError(
            f"--port {port}: must be free for this user: {error.strerror}\n    fix: {fix}"
        ) from None
    threading.Thread(target=server.serve_forever, name="page", daemon=True).start()
    print(f"the same at http://localhost:{server.server_port}", file=sys.stderr)
    return server
