"""The live view as one HTML page: cards, a row for each slice, events. No script, no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from urllib.parse import quote

from fleet.model import Condition
from fleet.show import Row, in_time
from infra.slices.names import LOG

REFRESH_S = 5
_BADGES = {
    Condition.WORKING: "ok", Condition.DONE: "ok", Condition.STARTING: "busy", Condition.RECOVERING: "busy",
    Condition.FAILED: "bad", Condition.UNKNOWN: "dim",
}  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --faint: #5d6975; --line: #e4e8ec; --ground: #f6f8fa;
        --card: #ffffff; --ok: #2c7a4b; --busy: #a8620a; --bad: #c22f36; --run: #17406d; --fill: #9ec5e8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --faint: #9aa7b4; --line: #2f3a46; --ground: #0f151b; --card: #18212a;
          --ok: #58b981; --busy: #e8b04a; --bad: #f0767d; --run: #9ec5e8; --fill: #35638c } }
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: 24px 16px 48px }
h1 { font-size: 21px; margin: 0 } p { margin: 2px 0 0; color: var(--faint) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px;
         margin: 16px 0 }
.card, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px }
.card { padding: 10px 14px; color: var(--faint) }
.card b { display: block; font-size: 19px; color: var(--ink) }
section { padding: 14px 16px; margin-top: 12px }
table { width: 100%; border-collapse: collapse; font-size: 14px }
th { text-align: left; font-weight: 500; color: var(--faint) }
td, th { padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top }
tr:last-child td { border-bottom: 0 }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.badge { font-weight: 600 } .ok { color: var(--ok) } .busy { color: var(--busy) } .bad { color: var(--bad) }
a { color: var(--run) } .dim, small { color: var(--faint) } small { display: block }
progress { width: 100%; height: 6px; accent-color: var(--ok); display: block; margin-top: 4px }
svg { width: 120px; height: 30px; display: block } pre { margin: 0; white-space: pre-wrap; font-size: 13px }
@media (max-width: 720px) {
  thead { display: none } tr { display: grid; grid-template-columns: 1fr 1fr; padding: 8px 0;
                               border-bottom: 1px solid var(--line) }
  tr:last-child { border-bottom: 0 } td { border: 0; padding: 3px 8px 3px 0; text-align: left !important }
  td:empty { display: none } td[data-head]::before { content: attr(data-head) " "; color: var(--faint) }
  td.wide { grid-column: 1 / -1 } }
"""

History = Mapping[str, Sequence[tuple[float, int]]]
"""By node: Unix time and samples or steps at each observation, oldest first."""


def page(
    title: str,
    clock: str,
    rows: Sequence[Row],
    history: History,
    facts: Mapping[str, str],
    lines: Sequence[str],
    events: Sequence[str],
    project: str = "",
) -> str:
    """Return the whole page; `facts` are its cards, `lines` what needs attention, `events` the newest last.

    With a project each slice has a link to its entries in Cloud Logging.
    """
    cards = "".join(
        f"<div class=card>{escape(name)}<b>{escape(value)}</b></div>" for name, value in facts.items()
    )
    columns = ("slice", "condition", "progress", "loss", "rate", "goodput", "left", "history")
    head = "".join(f"<th{' class=n' if 3 <= place <= 6 else ''}>{name}" for place, name in enumerate(columns))
    body = "".join(_row(row, history.get(row.node, ()), project) for row in rows)
    notes = f"<section><pre>{escape(chr(10).join(lines))}</pre></section>" if lines else ""
    happened = escape("\n".join(reversed(events))) or "nothing yet"
    return f"""<!doctype html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width, initial-scale=1">
<meta http-equiv=refresh content={REFRESH_S}><title>{escape(title)}</title><style>{_STYLE}</style>
<main><h1>{escape(title)}</h1><p>observed at {escape(clock)}, refreshed every {REFRESH_S} s</p>
<div class=cards>{cards}</div>
<section><table><thead><tr>{head}</tr></thead>
<tbody>{body}</tbody></table></section>
{notes}<section><p>events, newest first</p><pre>{happened}</pre></section></main></html>
"""


def _row(row: Row, history: Sequence[tuple[float, int]], project: str) -> str:
    badge = _BADGES[Condition(row.condition)]
    done = f"{row.samples:,}" if row.samples else ""
    if row.samples and row.of_samples:
        done += f" of {row.of_samples:,}<progress max={row.of_samples} value={row.samples}></progress>"
    if row.shards:
        done += f"<small>{row.shards:,} shards</small>"
    stage = f"<small>boot: {escape(row.stage)}</small>" if row.stage and not row.samples else ""
    reason = row.why.partition("\n")[0]
    why = f"<small>{escape(reason)}</small>" if reason and not (stage and reason == f"at {row.stage}") else ""
    rate = "" if row.samples_per_s is None else f"{row.samples_per_s:,.2f}/s"
    return (
        f"<tr><td class=wide><b>{escape(row.node)}</b>"
        f"<small>{escape(row.zone)}, {escape(row.state or '-')}{_logs(row.node, project)}</small>"
        f"<td class=wide><span class='badge {badge}'>{escape(row.condition)}</span>{stage}{why}"
        f"<td class=wide>{done}"
        f"<td class=n data-head=loss>{'' if row.loss is None else f'{row.loss:.3f}'}"
        f"<td class=n data-head=rate>{rate}"
        f"<td class=n data-head=goodput>{'' if row.goodput is None else f'{row.goodput:.0%}'}"
        f"<td class=n data-head=left>{'' if row.left_s is None else in_time(row.left_s)}"
        f"<td class=wide>{sparkline(history) if row.samples else ''}</tr>"
    )


def _logs(node: str, project: str) -> str:
    """Return a link to what a node's hosts printed: https://cloud.google.com/logging/docs/view/query-
    library
    """
    if not project:
        return ""
    query = f'logName="projects/{project}/logs/{LOG}" AND labels.node="{node}"'
    url = f"https://console.cloud.google.com/logs/query;query={quote(query, safe='')}?project={project}"
    return f' · <a href="{escape(url)}">logs</a>'


def sparkline(history: Sequence[tuple[float, int]], width: int = 120, height: int = 30) -> str:
    """Rate over time as a small chart; empty before three observations. A restart shows as a gap at zero."""
    rates = [
        (after_s, max(0.0, (after - before) / (after_s - before_s)))
        for (before_s, before), (after_s, after) in pairwise(history)
        if after_s > before_s
    ]
    if len(rates) < 2:
        return ""
    begin_s, end_s, most = rates[0][0], rates[-1][0], max(rate for _, rate in rates) or 1.0
    points = " ".join(
        f"{(at_s - begin_s) / (end_s - begin_s) * width:.1f},{height - 2 - rate / most * (height - 4):.1f}"
        for at_s, rate in rates
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="rate over time">'
        f'<polyline points="0,{height - 2} {points} {width},{height - 2}" fill="var(--fill)" opacity=".35"/>'
        f'<polyline points="{points}" fill="none" stroke="var(--run)" stroke-width="1.5"/></svg>'
    )
