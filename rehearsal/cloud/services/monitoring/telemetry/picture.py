"""The dashboards as a page: their own JSON, with the points that this cloud holds, as SVG in HTML.

Tiles lie where the JSON puts them, each with its lines, numbers, incidents or entries; it does not look as
Google's do. A query that can't be evaluated is an error, and no empty chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape

from rehearsal.cloud.core.clock import rfc3339
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.monitoring.telemetry import logmetrics
from rehearsal.cloud.services.monitoring.telemetry.incidents import Telemetry
from rehearsal.cloud.services.monitoring.telemetry.promql import Key

_STEPS = 72  # points of a line
_WIDTH, _ROW_PX = 1200, 12  # of a page, and the height of a row, in pixels
_COLOURS = ("#1a73e8", "#e8710a", "#188038", "#9334e6", "#d93025", "#129eaf", "#b80672", "#5f6368")
_STYLE = """text{font:11px system-ui,sans-serif;fill:#202124}.title{font-weight:600;font-size:13px}
.big{font-size:28px}.none{fill:#5f6368}.open{fill:#b3261e;font-weight:600}.line{font:10px monospace}"""


def page(world: World, telemetry: Telemetry, entries: Iterable[JsonObject], window_s: float) -> str:
    """All dashboards of the project over the last `window_s` virtual seconds.

    Raises ApiError for a query that can't be evaluated.
    """
    drawn = boards(world, telemetry, entries, window_s)
    now = rfc3339(world.clock.now())[:16].replace("T", " ")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Dashboards</title>'
        '<body style="font:14px system-ui,sans-serif;width:1200px;margin:24px auto">'
        f"<p>The last {window_s / 3600:g} h until {now} UTC, of the emulated cloud's clock.</p>"
        f"{''.join(drawn.values()) or '<p>No dashboard is up.</p>'}</html>"
    )


def boards(
    world: World, telemetry: Telemetry, entries: Iterable[JsonObject], window_s: float
) -> dict[str, str]:
    """Each dashboard as an SVG, by its display name."""
    drawn = _Drawn(world, telemetry, list(entries), window_s)
    bodies = [
        body for name, body in world.directory.items() if "/dashboards/" in name and "mosaicLayout" in body
    ]
    return {str(body["displayName"]): drawn.board(body) for body in sorted(bodies, key=_name)}


def _name(body: JsonObject) -> str:
    return str(body["displayName"])


class _Drawn:
    def __init__(
        self, world: World, telemetry: Telemetry, entries: list[JsonObject], window_s: float
    ) -> None:
        self._telemetry, self._entries, self._window_s = telemetry, entries, window_s
        self._now_s = world.clock.now()

    def board(self, body: JsonObject) -> str:
        layout = body["mosaicLayout"]
        unit = _WIDTH / layout["columns"]
        tiles, bottom = [], 0
        for tile in layout["tiles"]:
            x, y = tile.get("xPos", 0), tile.get("yPos", 0)
            bottom = max(bottom, y + tile["height"])
            width, height = tile["width"] * unit - 6, tile["height"] * _ROW_PX - 6
            tiles.append(
                f'<svg x="{x * unit:g}" y="{36 + y * _ROW_PX}" width="{width:g}" height="{height:g}">'
                f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="5" fill="#fff" '
                f'stroke="#dadce0"/>{self._widget(tile["widget"], width, height)}</svg>'
            )
        title = f'<text x="0" y="22" style="font-size:18px">{escape(_name(body))}</text>'
        size = f'width="{_WIDTH}" height="{36 + bottom * _ROW_PX}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>'
            f'<rect {size} fill="#fff"/>{title}{"".join(tiles)}</svg>'
        )

    def _widget(self, widget: JsonObject, width: float, height: float) -> str:
        title = f'<text class="title" x="10" y="20">{escape(widget.get("title", ""))}</text>'
        if "xyChart" in widget:
            inside = self._chart(widget["xyChart"], width - 20, height - 40)
            return f'{title}<svg x="10" y="30" width="{width - 20:g}" height="{height - 36:g}">{inside}</svg>'
        if "scorecard" in widget:
            query = widget["scorecard"]["timeSeriesQuery"]
            vector = self._telemetry.query(query["prometheusQuery"])
            unit = query.get("unitOverride", "1")
            shown = f"{sum(vector.values()):,.4g}" if vector else "no data"
            if vector and unit != "1" and not unit.startswith("{"):  # an annotation is no unit
                shown += f" {unit}"
            return f'{title}<text class="big" x="10" y="60">{escape(shown)}</text>'
        if "incidentList" in widget:
            return title + _rows(self._incidents())
        if "logsPanel" in widget:
            return title + _rows(self._logs(widget["logsPanel"]["filter"], int(height / 14) - 2))
        return title + _rows([("none", str(widget.get("text", {}).get("content", "")))])

    def _chart(self, chart: JsonObject, width: float, height: float) -> str:
        lines: dict[str, list[float]] = {}
        for number, series in enumerate(chart["dataSets"]):
            template = series.get("legendTemplate", "")
            for step in range(_STEPS):
                at = self._now_s - self._window_s * (1 - (step + 1) / _STEPS)
                vector = self._telemetry.query(series["timeSeriesQuery"]["prometheusQuery"], at)
                for key, value in vector.items():
                    name = _legend(template, key) or str(number)
                    lines.setdefault(name, [math.nan] * _STEPS)[step] = value
        if not lines:
            return '<text class="none" x="0" y="14">no data</text>'
        return _svg(lines, width, height)

    def _incidents(self) -> list[tuple[str, str]]:
        open_incidents = [item for item in self._telemetry.incidents if not item.closed_s]
        rows = [
            ("open", " ".join((item.policy["displayName"], *(value for _, value in item.labels))))
            for item in open_incidents
        ]
        return [*rows, ("none", f"{len(self._telemetry.incidents) - len(open_incidents)} closed")]

    def _logs(self, text: str, most: int) -> list[tuple[str, str]]:
        matches = logmetrics.matcher(text)
        entries = [item for item in self._entries if matches(item)][-most:]
        return [("line", _text(item)) for item in reversed(entries)] or [("none", "no entries")]


def _rows(lines: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f'<text class="{kind}" x="10" y="{40 + 14 * number}">{escape(text)}</text>'
        for number, (kind, text) in enumerate(lines)
    )


def _legend(template: str, key: Key) -> str:
    for label, value in key:
        template = template.replace(f"${{labels.{label}}}", value)
    return template


def _text(entry: JsonObject) -> str:
    payload = entry.get("textPayload") or entry.get("jsonPayload", {}).get("message")
    return str(payload or entry.get("protoPayload", {}).get("methodName", ""))[:200]


def _svg(lines: Mapping[str, list[float]], width: float, height: float) -> str:
    numbers = [value for line in lines.values() for value in line if not math.isnan(value)]
    low, high = min(0.0, *numbers), max(numbers)
    high = high if high > low else low + 1
    left, bottom = 44.0, 16.0

    def place(step: int, value: float) -> str:
        x = left + (width - left) * step / (_STEPS - 1)
        y = (height - bottom) * (1 - (value - low) / (high - low)) + 2
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<text x="0" y="12">{_short(high)}</text><text x="0" y="{height - bottom:.0f}">{_short(low)}</text>',
        f'<path d="M{left} 2V{height - bottom:.1f}H{width:.1f}" fill="none" stroke="#dadce0"/>',
    ]
    at = left
    for number, (name, line) in enumerate(sorted(lines.items())):
        colour = _COLOURS[number % len(_COLOURS)]
        for run in _runs(line):
            points = " ".join(place(step, line[step]) for step in run)
            if len(run) == 1:
                x, _, y = points.partition(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>')
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<rect x="{at:.0f}" y="{height - 9:.0f}" width="8" height="8" fill="{colour}"/>')
        parts.append(f'<text x="{at + 11:.0f}" y="{height - 1:.0f}">{escape(name)}</text>')
        at += 22 + 6 * len(name)
    return "".join(parts)


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _runs(line: list[float]) -> list[list[int]]:
    """Stretches of a line without a gap."""
    runs: list[list[int]] = []
    for step, value in enumerate(line):
        if math.isnan(value):
            continue
        if runs and runs[-1][-1] == step - 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return runs
