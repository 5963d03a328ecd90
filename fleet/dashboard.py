"""Dashboard of a fleet: redrawn at a terminal, summaries elsewhere, and a web page on this machine."""

import sys
import threading
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fleet import show
from fleet.errors import FleetError
from fleet.model import Condition
from fleet.observation import Observation
from fleet.page import page
from fleet.show import MemberRow, Rates
from views.console import Terminal

_EVENTS = 8
_ALIVE_S = 3600.0  # without a terminal, an unchanged summary is printed this often
_HISTORY = 360  # observations of each slice that the page's charts show


class Dashboard:
    """View of successive observations.

    A terminal is redrawn; elsewhere the summary is printed after events, and the log has the events.
    """

    def __init__(self, title: str, console: Console | None = None, project: str = "", environment: str = ""):
        self._project, self._environment = project, environment
        self._title, self._console = title, console or Terminal()
        self._rates, self._events = Rates(), deque[str](maxlen=_EVENTS)
        self._spent = show.Spent()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._last = "nothing observed yet, -", list[MemberRow](), list[str]()  # title, rows, lines
        self._printed, self._printed_s = "", 0.0
        self._history: dict[str, deque[tuple[float, int, float | None]]] = {}
        self._on_page = "-", dict[str, str](), list[str]()  # date and time, facts, remarks

    def __enter__(self) -> "Dashboard":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, observation: Observation) -> None:
        """Show an observation."""
        rows = show.rows(observation, self._rates)
        self._spent.note(observation)
        clock = datetime.fromtimestamp(observation.view.at_s).strftime("%H:%M:%S")
        fresh = [f"{clock} {event}" for event in observation.events]
        self._events.extend(fresh)
        remarks = [*show.unanswered(observation), *show.remarks(observation)]
        lines = [show.summary(rows), *remarks, show.price_so_far(self._spent)]
        self._last = f"{self._title}, {clock}", rows, [*lines, "", *self._events]
        for row in rows:
            observed = self._history.setdefault(row.node, deque(maxlen=_HISTORY))
            observed.append((observation.view.at_s, row.samples, row.loss))
        date = datetime.fromtimestamp(observation.view.at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
        self._on_page = date, show.facts(rows, observation, self._spent), remarks
        if self._live:
            self._live.update(self._drawn(self._console.height - len(lines) - _EVENTS - 6), refresh=True)
        else:
            late = observation.view.at_s - self._printed_s >= _ALIVE_S
            if fresh or late or lines[0] != self._printed:
                self._printed, self._printed_s = lines[0], observation.view.at_s
                print(f"{clock} {lines[0]}", *lines[1:], sep="\n", flush=True)

    @property
    def page(self) -> str:
        """HTML page with every slice and its history."""
        return self.page_of("")

    def page_of(self, condition: str) -> str:
        """Return the page with the slices in a condition; with all, where it is empty or none is in it."""
        clock, facts, remarks = self._on_page
        return page(
            self._title, clock, self._last[1], self._history, facts, remarks, [*self._events],
            self._project, self._environment, condition,
        )  # fmt: skip

    def _drawn(self, room: int) -> Group:
        """Draw the last observation; with too many members, those that need attention first."""
        (title, result, lines), room = self._last, max(5, room)
        order: Sequence[MemberRow] = result
        if len(result) > room:
            order = sorted(result, key=lambda row: [*show.MARKS].index(Condition(row.condition)))[:room]
            lines = [f"… and {len(result) - room} more", *lines]
        foot = "Ctrl+C leaves the fleet as it is."
        return Group(show.table(order, title), *map(Text, ["", *lines, foot]))


def serve(dashboard: Dashboard, port: int) -> ThreadingHTTPServer:
    """Serve the page at http://localhost:PORT, on this machine only.

    Raises:
        FleetError: the port is taken, or not for this user.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            chosen = parse_qs(urlsplit(self.path).query).get("show", [""])[0]
            content = dashboard.page_of(chosen).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log no requests of the page."""

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
