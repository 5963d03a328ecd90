"""Verdict as an HTML page: fit, memory as a waterfall, time, price and risk."""

from collections.abc import Sequence
from html import escape

from workload.preflight.report import WORDS, collectives, seconds, short, size
from workload.preflight.roofline import Prediction
from workload.preflight.slices import CHIP, GIB, PRICES_READ
from workload.preflight.verdict import MARGIN, Money, Verdict

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --faint: #5d6975; --line: #e4e8ec; --ground: #f6f8fa;
        --card: #ffffff; --yes: #2c7a4b; --uncertain: #a8620a; --no: #c22f36; --bar: #4a7fb5; --all: #17406d }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --faint: #9aa7b4; --line: #2f3a46; --ground: #0f151b; --card: #18212a;
          --yes: #58b981; --uncertain: #e8b04a; --no: #f0767d; --bar: #5b8fc2; --all: #9ec5e8 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 860px; margin: 0 auto; padding: 24px 16px 48px }
h1 { font-size: 26px; margin: 0 } h2 { font-size: 16px; margin: 0 0 8px }
.yes { color: var(--yes) } .no { color: var(--no) } .uncertain { color: var(--uncertain) }
p { margin: 4px 0 0 } .faint, small { color: var(--faint) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
          margin-top: 14px }
.row { display: grid; grid-template-columns: 15em 1fr 6.5em; gap: 0 10px; align-items: center; margin: 5px 0 }
.row > :last-child { color: var(--faint); font-size: 13px; white-space: nowrap }
.track { position: relative; height: 18px }
.track i { position: absolute; height: 100%; min-width: 2px; background: var(--bar); border-radius: 2px }
.track .all { background: var(--all) } .track .over { background: var(--no) }
.track u { position: absolute; height: 28px; top: -5px; border-left: 1px dashed var(--no) }
@media (max-width: 560px) {
  .row { grid-template-columns: 1fr 6.5em } .row > :first-child { grid-column: 1 / -1 } }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 10px 20px;
     margin: 12px 0 0 }
dt { color: var(--faint); font-size: 13px } dd { margin: 0 } dd b { font-size: 18px }
"""


def page(verdict: Verdict, name: str) -> str:
    """Return the page of `workload preflight --html`; `name` is the config's."""
    parts = [
        f'<h1 class="{verdict.fits}">{_text(WORDS[verdict.fits])}</h1>',
        f"<p><b>{_text(name)}</b> on <b>{_text(verdict.slices.title)}</b>: {_text(verdict.reason)}</p>",
        f'<p class="faint">{_text(_summary(verdict))}</p>',
        _section("Memory of a chip", _memory(verdict)),
    ]
    if verdict.prediction:
        parts.append(_section("Time of a step, predicted", _time(verdict, verdict.prediction)))
    parts += [_section("Price", _price(verdict)), _section("Risk", _risk(verdict))]
    title = f"{WORDS[verdict.fits].lower()}: {name} on {verdict.slices.title}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _summary(verdict: Verdict) -> str:
    config, compiled = verdict.config, verdict.compiled
    return (
        f"{config.model.parameters() / 1e9:.2f} B parameters, batch {config.train.batch_size} x "
        f"{config.data.sequence_length} tokens, remat {' '.join(config.compute.remat)}, attention "
        f"{compiled.attention}; compiled by {compiled.compiler} in {compiled.compile_s:.0f} s. "
        "Nothing here was measured on a TPU."
    )


def _memory(verdict: Verdict) -> str:
    compiled = verdict.compiled
    if compiled.refused:
        return f"<p>{_text(compiled.refused)}</p>"
    together, room = compiled.hbm_bytes, CHIP.hbm_bytes
    scale = 100 / max(together, room)
    parts = [
        ("arguments: state and batch", compiled.arguments_bytes),
        ("temporaries at their peak", compiled.temporaries_bytes),
        ("outputs", compiled.outputs_bytes),
        ("code", compiled.code_bytes),
    ]
    limits = [room * MARGIN * scale, room * scale]
    rows, begin = [], 0
    for label, part in parts:
        rows.append(_bar(label, size(part), begin * scale, part * scale, "", limits))
        begin += part
    kind = "all" if together <= room * MARGIN else "over"
    rows.append(_bar("together", size(together), 0, together * scale, kind, limits))
    note = f"Dashed: the safe limit, {MARGIN:.0%}, and the chip's {room / GIB:.2f} GiB."
    if compiled.largest:
        note += " Largest temporaries; those with disjoint lifetimes share memory:"
    largest = "".join(
        f"<li>{size(buffer.size_bytes)} <small>{_text(short(buffer.shapes))}</small></li>"
        for buffer in compiled.largest[:5]
    )
    return f'{"".join(rows)}<p class="faint">{note}</p>{f"<ol>{largest}</ol>" if largest else ""}'


def _bar(
    label: str, value: str, begin: float, width: float, kind: str = "", limits: Sequence[float] = ()
) -> str:
    """Return a row of a chart; `begin`, `width` and `limits` are percentages of the track."""
    lines = "".join(f'<u style="left:{limit:.2f}%"></u>' for limit in limits)
    bar = f'<i class="{kind}" style="left:{begin:.2f}%;width:{width:.2f}%"></i>'
    track = f'<span class="track">{bar}{lines}</span>'
    return f'<div class="row"><span>{_text(label)}</span>{track}<span>{_text(value)}</span></div>'


def _time(verdict: Verdict, prediction: Prediction) -> str:
    bounds = prediction.bounds
    times = [
        ("arithmetic", bounds.compute, bounds.binding == "compute"),
        ("memory traffic", bounds.hbm, bounds.binding == "hbm"),
        ("links in a slice", bounds.ici, bounds.binding == "ici"),
        ("network between slices", bounds.dcn, bounds.binding == "dcn"),
        ("exposed collectives, on top", bounds.exposed, False),
    ]
    slow, likely, fast = prediction.step_s
    scale = 100 / (max(likely, *(duration for _, duration, _ in times)) or 1.0)
    rows = [
        _bar(f"{label}{' (binds)' if binds else ''}", seconds(duration), 0, duration * scale)
        for label, duration, binds in times
    ]
    rows.append(_bar("a step, likely", seconds(likely), 0, likely * scale, "all"))
    tokens_slow, tokens, tokens_fast = prediction.tokens_per_s_per_chip
    facts = {
        "tokens/s/chip": f"<b>{tokens:,.0f}</b><br><small>{tokens_slow:,.0f} to {tokens_fast:,.0f}</small>",
        "a step": f"<b>{seconds(likely)}</b><br><small>{seconds(fast)} to {seconds(slow)}</small>",
        "MFU": "<br>".join(
            f"{share:.1%} <small>{_text(kind)}</small>" for kind, share in prediction.mfu.items()
        ),
        "collectives": "<br>".join(map(_text, collectives(verdict))) or "none",
    }
    return f"{''.join(rows)}{_facts(facts)}"


def _price(verdict: Verdict) -> str:
    facts = {kind.replace("_", " "): _dollars(money) for kind, money in verdict.money.items()}
    note = f"In {verdict.price.region}, as read {PRICES_READ}; a run of {verdict.config.train.steps:,} steps."
    return f'{_facts(facts)}<p class="faint">{_text(note)}</p>'


def _dollars(money: Money) -> str:
    if money.an_hour is None:
        return "not known"
    more = ""
    if money.a_run is not None and money.a_billion_tokens is not None:
        more = (
            f"<br><small>${money.a_run:,.0f} a run, ${money.a_billion_tokens:,.2f} a billion tokens</small>"
        )
    return f"<b>${money.an_hour:,.2f}</b> an hour{more}"


def _risk(verdict: Verdict) -> str:
    risk, config = verdict.risk, verdict.config
    slow, fast = risk.save_s
    fit = {"yes": "fits into", "no": "doesn't fit into", "perhaps": "may not fit into"}[risk.notice]
    return _facts(
        {
            "checkpoint": f"<b>{fast:.1f} to {slow:.1f} s</b><br><small>{fit} the "
            f"{config.checkpoint.notice_s:g} s notice</small>",
            "save every": f"<b>{risk.interval_s:,.1f} s</b><br><small>{_text(risk.interval_reason)}</small>",
            "goodput": f"<b>{risk.goodput:.1%}</b><br><small>a preemption every "
            f"{config.checkpoint.preemption_every_h:g} h, {risk.recovery_s / 60:g} min to resume "
            "(assumed)</small>",
            "state": f"<b>{verdict.compiled.arguments_bytes / GIB:.2f} GiB</b> a chip",
        }
    )


def _facts(facts: dict[str, str]) -> str:
    rows = (f"<div><dt>{_text(key)}</dt><dd>{value}</dd></div>" for key, value in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{content}</section>"


def _text(text: str) -> str:
    return escape(text)
