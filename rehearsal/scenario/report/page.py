"""The report as one HTML page that needs no network, no script and no other file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from rehearsal.scenario.record import Record, RunRecord
from rehearsal.scenario.report.facts import costs, headlines, lost_at, minutes

COLOURS = """
:root { color-scheme: light dark; --ink: #1d2733; --faint: #5d6975; --line: #e4e8ec; --ground: #f6f8fa;
        --card: #ffffff; --busy: #d9e4ee; --run: #17406d; --reference: #9ec5e8;
        --ok: #2c7a4b; --bad: #c22f36 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --faint: #9aa7b4; --line: #2f3a46; --ground: #0f151b; --card: #18212a;
          --busy: #33475a; --run: #f2c14e; --reference: #35638c; --ok: #3d9a63; --bad: #e2555c } }
"""
_STYLE = (
    f"""{COLOURS}"""
    + """
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 6px } h2 { font-size: 17px; margin: 0 0 4px }
p { margin: 4px 0; color: var(--faint) }
.verdict { display: inline-block; padding: 2px 12px; border-radius: 99px; color: white; font-weight: 600;
           background: var(--bad) } .verdict.passed { background: var(--ok) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
         margin: 20px 0 }
.card, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px }
.card { padding: 12px 14px } .card b { display: block; font-size: 17px; overflow-wrap: anywhere }
.card span { color: var(--faint) }
section { padding: 18px 20px; margin-top: 16px; overflow-x: auto } svg { width: 100%; height: auto }
table { border-collapse: collapse; width: 100%; font-size: 14px }
th { text-align: left; color: var(--faint); font-weight: 500 }
td { overflow-wrap: anywhere }
td, th { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
             overflow-wrap: normal }
tr:last-child td { border-bottom: 0 } .failed td { color: var(--bad) } .detail { color: var(--faint) }
pre { white-space: pre-wrap; margin: 8px 0 0; font-size: 13px } ul { margin: 6px 0 0; padding-left: 20px }
details summary { cursor: pointer; font-weight: 600; font-size: 17px }
@media (max-width: 700px) { svg { min-width: 680px } main { padding: 16px 12px 48px } }
@media print { body { background: white } section { break-inside: avoid } }
"""
)


def page(record: Record) -> str:
    """Return the whole page."""
    began = datetime.fromtimestamp(record.start, UTC).strftime("%Y-%m-%d %H:%M UTC")
    cards = "".join(
        f"<div class=card><span>{escape(w)}</span><b>{escape(v)}</b></div>" for w, v in headlines(record)
    )
    parts = [_reason(record), _checks(record), _hosts(record), *_losses(record), _faults(record)]
    parts += [_price(record), _steps(record), _access(record), _requests(record)]
    return f"""<!doctype html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width, initial-scale=1">
<title>Rehearsal: {escape(record.scenario)}, {escape(record.verdict)}</title>
<style>{_STYLE}</style>
<main>
<h1>{escape(record.title)}</h1>
<p><span class="verdict {escape(record.verdict)}">{escape(record.verdict)}</span>
 &ensp;scenario <b>{escape(record.scenario)}</b>, environment {escape(record.environment)},
 seed {record.seed}, {began}{f", {escape(record.plugin)}" if record.plugin else ""}</p>
<div class=cards>{cards}</div>
{"".join(part for part in parts if part)}
</main></html>
"""


def _prose(text: str) -> str:
    """As HTML, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _section(title: str, body: str, text: str = "") -> str:
    lead = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{lead}{body}</section>\n" if body else ""


def _table(
    head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], numeric: Sequence[int] = ()
) -> str:
    """Rows are (CSS class, cells as HTML)."""
    mark = ["".join(" class=n" if i in numeric else "") for i in range(len(head))]
    top = "".join(f"<th{mark[i]}>{escape(text)}</th>" for i, text in enumerate(head))
    body = "".join(
        f'<tr class="{css}">' + "".join(f"<td{mark[i]}>{cell}</td>" for i, cell in enumerate(cells)) + "</tr>"
        for css, cells in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def _reason(record: Record) -> str:
    return _section("Why not passed", f"<pre>{escape(record.reason)}</pre>") if record.reason else ""


def _checks(record: Record) -> str:
    items = "".join(
        f"<li>{_prose(check.claim)} <span class=detail>({escape(check.evidence)})</span></li>"
        for check in record.checks
    )
    return _section("Proved", f"<ul>{items}</ul>") if items else ""


def _hosts(record: Record) -> str:
    output = (
        "One row a host: the stages of the production start-up script at each boot, then the time it was up."
    )
    from rehearsal.scenario.report import plots  # matplotlib, a second of imports, where something is drawn

    return _section("Hosts", plots.timeline(record), output)


def compared(record: Record) -> list[tuple[RunRecord, RunRecord]]:
    """Return an uninterrupted run, and each interrupted one that can be compared with it."""
    killed = {kill.run for kill in record.kills}
    runs = [run for run in record.runs if run.losses]
    calm = next((run for run in runs if run.name not in killed), None)
    return [(calm, run) for run in runs if run.name in killed] if calm else []


def _losses(record: Record) -> list[str]:
    """Loss and progress of every interrupted run that can be compared."""
    from rehearsal.scenario.report import plots

    parts = []
    for calm, run in compared(record):
        output = "The thick line was never interrupted; the thin one on top of it was, at the marks."
        parts.append(_section(f"Loss: {run.name} over {calm.name}", plots.loss(record, calm, run), output))
        output = "Steps that were reported; a restore begins a new line, at the newest complete checkpoint."
        parts.append(_section(f"Progress of {run.name}", plots.progress(record, run), output))
    return parts


def _faults(record: Record) -> str:
    rows = [("", (escape(f["name"]), f"{f['observed']}×")) for f in record.faults]
    rows += [
        (
            "",
            (
                escape(f"{k.how}: {k.node}, {lost_at(record, k)}"),
                minutes(k.time - record.start),
            ),
        )
        for k in record.kills
    ]
    table = _table(["what went wrong, on purpose", "observed / at"], rows, [1]) if rows else ""
    return _section("Faults and kills", table)


def _price(record: Record) -> str:
    rows = [
        (
            "",
            (
                escape(cost.node),
                "spot" if cost.spot else "on demand",
                f"${cost.usd_hour:,.2f}",
                minutes(cost.hours * 3600),
                f"{cost.chip_hours:,.2f}",
                f"${cost.usd:,.2f}",
            ),
        )
        for cost in costs(record)
    ]
    if not rows:
        return ""
    dates = ", ".join(sorted({cost.dated for cost in costs(record)}))
    output = (
        f"Prices of {dates} from the project's catalog, times the wall time that the node existed here. "
        "CPU hosts train slower and boot faster than v6e: it shows the bill's shape, not your bill."
    )
    head = ["node", "kind", "per hour", "up (h:mm:ss)", "chip-hours", "price"]
    return _section("What the same hours cost on Google Cloud", _table(head, rows, [2, 3, 4, 5]), output)


def _steps(record: Record) -> str:
    rows = [
        (
            step.outcome,
            (
                minutes(step.start - record.start),
                f"{_prose(step.text)}<br><span class=detail>{escape(step.detail)}</span>",
                f"{step.end - step.start:.1f} s",
            ),
        )
        for step in record.steps
    ]
    return _section("Steps", _table(["at", "step", "took"], rows, [0, 2]))


def _access(record: Record) -> str:
    head = ["account", "role", "on", "permissions that it alone granted"]
    rows = [
        ("" if rows else "detail", (*map(escape, granted), escape(", ".join(rows) or "none")))
        for granted, rows in sorted(record.alone().items())
    ]
    refused = [
        ("failed", (escape(entry["account"]), "none", "", escape(entry["permission"])))
        for entry in record.permissions
        if not entry["granted_by"]
    ]
    title = f"Who was asked for what: {len(record.permissions)} permissions, {len(refused)} refused"
    table = _table(head, [*rows, *refused])
    return f"<section><details><summary>{title}</summary>{table}</details></section>" if rows else ""


def _requests(record: Record) -> str:
    methods = record.requests.get("methods", {})
    rows = [
        ("failed" if count["refused"] else "", (escape(name), str(count["validated"]), str(count["refused"])))
        for name, count in sorted(methods.items())
    ]
    rows += [("detail", (escape(name), "0", "0")) for name in record.served if name not in methods]
    table = _table(["method", "validated", "refused"], rows, [1, 2])
    title = f"{record.requests.get('validated', 0):,} requests, held against Google's discovery documents"
    return f"<section><details><summary>{title}</summary>{table}</details></section>" if rows else ""
