"""A typed builder of dashboards, in the JSON that Cloud Monitoring gives back: no zeros, no empty lists.

What it writes otherwise than the API would is a change at every `up`.
https://cloud.google.com/monitoring/api/ref_dashboards/rest/v1/projects.dashboards
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

COLUMNS = 48


@dataclass(frozen=True)
class Line:
    """A PromQL expression, called `name` in the legend."""

    query: str
    name: str


@dataclass(frozen=True)
class Chart:
    """Lines, or stacked areas or bars, over time."""

    title: str
    lines: tuple[Line, ...]
    unit: str = "1"
    plot: Literal["LINE", "STACKED_AREA", "STACKED_BAR"] = "LINE"

    def widget(self) -> dict[str, Any]:
        """As the API has it."""
        sets = [
            {
                "legendTemplate": line.name,
                "plotType": self.plot,
                "targetAxis": "Y1",
                "timeSeriesQuery": {"prometheusQuery": line.query, "unitOverride": self.unit},
            }
            for line in self.lines
        ]
        return {"title": self.title, "xyChart": {"dataSets": sets, "yAxis": {"scale": "LINEAR"}}}


@dataclass(frozen=True)
class Score:
    """A current number and its history."""

    title: str
    query: str
    unit: str = "1"

    def widget(self) -> dict[str, Any]:
        """As the API has it."""
        query = {"prometheusQuery": self.query, "unitOverride": self.unit}
        return {
            "title": self.title,
            "scorecard": {"sparkChartView": {"sparkChartType": "SPARK_LINE"}, "timeSeriesQuery": query},
        }


@dataclass(frozen=True)
class Logs:
    """The entries that match a filter."""

    title: str
    filter: str

    def widget(self) -> dict[str, Any]:
        """As the API has it."""
        return {"title": self.title, "logsPanel": {"filter": self.filter}}


@dataclass(frozen=True)
class Incidents:
    """Incidents that are open."""

    title: str

    def widget(self) -> dict[str, Any]:
        """As the API has it."""
        return {"title": self.title, "incidentList": {}}


@dataclass(frozen=True)
class Text:
    """Markdown."""

    title: str
    content: str

    def widget(self) -> dict[str, Any]:
        """As the API has it."""
        return {"title": self.title, "text": {"content": self.content, "format": "MARKDOWN"}}


Widget = Chart | Score | Logs | Incidents | Text


@dataclass(frozen=True)
class WidgetRow:
    """Widgets of equal width beside one another."""

    height: int
    widgets: tuple[Widget, ...]


@dataclass(frozen=True)
class Dashboard:
    """Rows below one another; `labels` without values, by which it is found."""

    name: str
    rows: Sequence[WidgetRow]
    labels: tuple[str, ...] = ()

    def content(self) -> dict[str, Any]:
        """As the API has it. Raises ValueError for a row whose widgets don't divide the width."""
        tiles: list[dict[str, Any]] = []
        y = 0
        for row in self.rows:
            width, rest = divmod(COLUMNS, len(row.widgets))
            if rest:
                raise ValueError(f"{self.name}: {len(row.widgets)} widgets in a row of {COLUMNS} columns")
            for number, widget in enumerate(row.widgets):
                at = {"xPos": number * width, "yPos": y}
                size = {"height": row.height, "width": width, "widget": widget.widget()}
                tiles.append({**{key: value for key, value in at.items() if value}, **size})
            y += row.height
        labels = {"labels": dict.fromkeys(self.labels, "")} if self.labels else {}
        return {
            "displayName": self.name,
            **labels,
            "mosaicLayout": {"columns": COLUMNS, "tiles": tiles},
        }

    def text(self) -> str:
        """Return the same bytes for the same dashboard."""
        return json.dumps(self.content(), sort_keys=True)
