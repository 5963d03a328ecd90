"""The live view as one HTML page: cards, a row for each slice with its rate and loss over time, events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from fleet.model import Condition
from fleet.show import HEAD, MemberRow, cells, in_rate
from infra.slices.names import LOG
from views.chart import Line, chart, extent, short
from views.page import render

REFRESH_S = 5
_CLASSES = {
    Condition.WORKING: "ok", Condition.DONE: "ok", Condition.STARTING: "warn", Condition.RECOVERING: "warn",
    Condition.FAILED: "bad", Condition.UNKNOWN: "faint",
}  # fmt: skip

History = Mapping[str, Sequence[tuple[float, int, float | None]]]
"""By node: Unix time, samples or steps, and loss at each observation, oldest first."""


def page(
    title: str,
    clock: str,
    rows: Sequence[MemberRow],
    history: History,
    facts: Mapping[str, str],
    lines: Sequence[str],
    events: Sequence[str],
    project: str = "",
    environment: str = "",
    condition: str = "",
) -> str:
    """Return the whole page; `facts` are its cards, `lines` what needs attention, `events` the newest last.

    With a project each slice has a link to its entries in Cloud Logging, with an environment the command that
    shows its run. With a condition that some slices are in, these alone have rows.
    """
    counts = Counter(row.condition for row in rows)
    chosen = [row for row in rows if row.condition == condition] or rows
    slices = [
        {
            "row": row,
            "css": _CLASSES[Condition(row.condition)],
            **dict(zip(HEAD, cells(row), strict=True)),
            "logs": logs_url(row.node, project) if project else "",
            "shown_by": _shown_by(row.run, environment),
            "rates": _drawn(rates(observed), "rate over time", in_rate),
            "losses": _drawn(
                [(at_s, loss) for at_s, _, loss in observed if loss is not None],
                "loss over time",
                short,
            ),
        }
        for row in chosen
        for observed in [history.get(row.node, ()) if row.samples else ()]
    ]
    return render(Path(__file__).with_name("page.html"), {
        "title": title, "clock": clock, "refresh_s": REFRESH_S, "facts": facts.items(), "slices": slices,
        "lines": lines, "events": events[::-1], "conditions": counts if len(counts) > 1 else {},
    })  # fmt: skip


def _shown_by(run: str, environment: str) -> str:
    """Return the command that shows a run of the checkpoint bucket; empty for anything else."""
    name = re.fullmatch(r"gs://[^/]+/runs/([a-z0-9][a-z0-9._-]*)", run)
    return f"tpu runs show {environment} {name[1]}" if name and environment else ""


def rates(history: Sequence[tuple[float, int, float | None]]) -> Line:
    """Return the rate between successive observations; 0 where a restart went back to a checkpoint."""
    return [
        (after_s, max(0.0, (after - before) / (after_s - before_s)))
        for (before_s, before, _), (after_s, after, _) in pairwise(history)
        if after_s > before_s
    ]


def _drawn(line: Line, label: str, formatted: Callable[[float], str]) -> tuple[Markup, str] | None:
    """Return a chart and the extent of its axis; None for fewer than two points."""
    if len(line) < 2:
        return None
    low, high = extent([line])
    return chart([line], label), f"{formatted(low)} to {formatted(high)}"


def logs_url(node: str, project: str) -> str:
    """Return a link to a node's entries: https://cloud.google.com/logging/docs/view/query-library"""
    query = f'logName="projects/{project}/logs/{LOG}" AND labels.node="{node}"'
    return f"https://console.cloud.google.com/logs/query;query={quote(query, safe='')}?project={project}"
