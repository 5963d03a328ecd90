"""The dashboards as a page: their own JSON, with the points that this cloud holds.

Tiles lie where the JSON puts them, each with its lines, numbers, incidents or entries; it does not look as
Google's do. A query that can't be evaluated is an error, and no empty chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from rehearsal.cloud.core.clock import rfc3339
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.logging import counting
from rehearsal.cloud.services.monitoring.telemetry.incidents import Telemetry
from rehearsal.cloud.services.monitoring.telemetry.promql import Key
from views.chart import chart, extent, short
from views.page import render

_STEPS = 72  # points of a line


@dataclass
class Tile:
    """Content of a widget.

    Attributes:
        title: of the widget.
        area: of a CSS grid: begin of row and column, their spans.
        number: of a scorecard.
        rows: CSS class and text of each line of text.
        chart: its lines as SVG, in the order of `legend`.
        extent: lowest and highest value of the chart.
    """

    title: str
    area: str
    number: str = ""
    rows: Iterable[tuple[str, str]] = ()
    chart: Markup | None = None
    extent: str = ""
    legend: Iterable[str] = ()


def page(world: World, telemetry: Telemetry, entries: Iterable[JsonObject], window_s: float) -> str:
    """Return all dashboards of the project over the last `window_s` virtual seconds.

    Raises ApiError for a query that can't be evaluated.
    """
    return render(Path(__file__).with_name("dashboards.html"), {
        "title": "Dashboards",
        "boards": boards(world, telemetry, entries, window_s),
        "now": rfc3339(world.clock.now())[:16].replace("T", " "),
        "hours": f"{window_s / 3600:g}",
    })  # fmt: skip


def boards(
    world: World, telemetry: Telemetry, entries: Iterable[JsonObject], window_s: float
) -> dict[str, list[Tile]]:
    """Return the tiles of each dashboard, by its display name."""
    bodies = {
        str(body["displayName"]): body
        for name, body in world.directory.items()
        if "/dashboards/" in name and "mosaicLayout" in body
    }
    content = _Content(world, telemetry, list(entries), window_s)
    return {
        name: [content.tile(tile) for tile in body["mosaicLayout"]["tiles"]]
        for name, body in sorted(bodies.items())
    }


class _Content:
    """Content of tiles, as of now."""

    def __init__(
        self, world: World, telemetry: Telemetry, entries: list[JsonObject], window_s: float
    ) -> None:
        self._telemetry, self._entries = telemetry, entries
        now_s = world.clock.now()
        self._times = [now_s - window_s * (1 - (step + 1) / _STEPS) for step in range(_STEPS)]

    def tile(self, tile: JsonObject) -> Tile:
        widget = tile["widget"]
        begin = f"{tile.get('yPos', 0) + 1} / {tile.get('xPos', 0) + 1}"
        result = Tile(widget.get("title", ""), f"{begin} / span {tile['height']} / span {tile['width']}")
        if "xyChart" in widget:
            self._chart(widget["xyChart"], result)
        elif "scorecard" in widget:
            query = widget["scorecard"]["timeSeriesQuery"]
            vector = self._telemetry.query(query["prometheusQuery"])
            unit = query.get("unitOverride", "1")
            unit = "" if unit == "1" or unit.startswith("{") else f" {unit}"  # an annotation is no unit
            result.number = f"{short(sum(vector.values()))}{unit}" if vector else "no data"
        elif "incidentList" in widget:
            result.rows = self._incidents()
        elif "logsPanel" in widget:
            result.rows = self._logs(widget["logsPanel"]["filter"], tile["height"] - 2)
        else:
            result.rows = [("faint", str(widget.get("text", {}).get("content", "")))]
        return result

    def _chart(self, body: JsonObject, tile: Tile) -> None:
        lines: dict[str, list[float]] = {}
        for number, series in enumerate(body["dataSets"]):
            template = series.get("legendTemplate", "")
            for step, at in enumerate(self._times):
                vector = self._telemetry.query(series["timeSeriesQuery"]["prometheusQuery"], at)
                for key, value in vector.items():
                    name = _legend(template, key) or str(number)
                    lines.setdefault(name, [math.nan] * _STEPS)[step] = value
        if not lines:
            tile.rows = [("faint", "no data")]
            return
        tile.legend = sorted(lines)
        points = [list(zip(self._times, lines[name], strict=True)) for name in tile.legend]
        tile.chart, (low, high) = chart(points, tile.title), extent(points)
        tile.extent = f"{short(low)} to {short(high)}"

    def _incidents(self) -> list[tuple[str, str]]:
        incidents = self._telemetry.incidents
        rows = [
            ("bad", " ".join((item.policy["displayName"], *(value for _, value in item.labels))))
            for item in incidents
            if not item.closed_s
        ]
        return [*rows, ("faint", f"{len(incidents) - len(rows)} closed")]

    def _logs(self, text: str, most: int) -> list[tuple[str, str]]:
        matches = counting.matcher(text)
        entries = [item for item in self._entries if matches(item)][-most:]
        return [("entry", _text(item)) for item in reversed(entries)] or [("faint", "no entries")]


def _legend(template: str, key: Key) -> str:
    for label, value in key:
        template = template.replace(f"${{labels.{label}}}", value)
    return template


def _text(entry: JsonObject) -> str:
    payload = entry.get("textPayload") or entry.get("jsonPayload", {}).get("message")
    return str(payload or entry.get("protoPayload", {}).get("methodName", ""))[:200]
