"""The live view: in a terminal, as lines where there is none, and as a page on this machine."""

import html
import sys
import threading
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from fleet import show
from fleet.controller import Observation
from fleet.errors import FleetError
from fleet.model import Condition
from fleet.show import Rates, Row

_EVENTS = 8
_ALIVE_S = 3600.0  # without a terminal: that nothing has changed is said this often
_PAGE_WIDTH = 180
_PAGE = """<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=5><title>TITLE</title>
<body style="color:{foreground};background:{background}">
<pre style="font:13px/1.5 ui-monospace,monospace">{code}</pre>
"""


class Dashboard:
    """Shows one look after another.

    A terminal is drawn anew; anywhere else what happened is a line each, and the summary where it changes.
    """

    def __init__(self, title: str, console: Console | None = None):
        self._title, self._console = title, console or Console()
        self._rates, self._events = Rates(), deque[str](maxlen=_EVENTS)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._last = "nothing was seen yet", list[Row](), list[str]()  # title, rows, lines
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

    def show(self, observation: Observation) -> None:
        """One more look."""
        found = show.rows(observation, self._rates)
        clock = datetime.fromtimestamp(observation.view.at_s).strftime("%H:%M:%S")
        fresh = [f"{clock} {event}" for event in observation.events]
        self._events.extend(fresh)
        lines = [show.summary(found), *show.unanswered(observation), *show.remarks(observation)]
        self._last = f"{self._title}, {clock}", found, [*lines, "", *self._events]
        if self._live:
            self._live.update(self._drawn(self._console.height - len(lines) - _EVENTS - 6), refresh=True)
        else:
            # Nobody reads the same line 1,440 times a day.
            changed = lines[0] != self._printed or observation.view.at_s - self._printed_s >= _ALIVE_S
            if changed:
                self._printed, self._printed_s = lines[0], observation.view.at_s
            summary = [f"{clock} {lines[0]}", *lines[1:]] if changed or fresh else []
            print(*fresh, *summary, sep="\n", end="\n" * bool(fresh or summary), flush=True)

    @property
    def page(self) -> str:
        """What a terminal of any height would show, as HTML."""
        console = Console(record=True, file=StringIO(), width=_PAGE_WIDTH)
        console.print(self._drawn(len(self._last[1])))
        frame = _PAGE.replace("TITLE", html.escape(self._title))
        return console.export_html(theme=SVG_EXPORT_THEME, code_format=frame, inline_styles=True)

    def _drawn(self, room: int) -> Group:
        """The last look; of more members than there is room for, those that need somebody."""
        (title, found, lines), room = self._last, max(5, room)
        order: Sequence[Row] = found
        if len(found) > room:
            order = sorted(found, key=lambda row: [*show.MARKS].index(Condition(row.condition)))[:room]
            lines = [f"… and {len(found) - room} more", *lines]
        foot = "Ctrl+C leaves the fleet as it is."
        return Group(show.table(order, title), *map(Text, ["", *lines, foot]))


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
