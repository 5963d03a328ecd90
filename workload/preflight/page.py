"""Verdict as an HTML page: fit, memory as a waterfall, time, price and risk."""

from itertools import accumulate
from pathlib import Path

from views.page import render
from workload.preflight.report import WORDS, collectives, seconds, short, size
from workload.preflight.roofline import Prediction
from workload.preflight.slices import CHIP, GIB, PRICES_READ
from workload.preflight.verdict import MARGIN, Money, Verdict

_CLASSES = {"yes": "ok", "uncertain": "warn", "no": "bad"}
_Bar = tuple[str, str, float, float, str]
_Fact = tuple[str, str, str, list[str]]


def page(verdict: Verdict, name: str) -> str:
    """Return the page of `workload preflight --html`; `name` is the config's."""
    config, compiled = verdict.config, verdict.compiled
    together, room = compiled.hbm_bytes, CHIP.hbm_bytes
    prediction = verdict.prediction
    return render(Path(__file__).with_name("page.html"), {
        "title": f"{WORDS[verdict.fits].lower()}: {name} on {verdict.slices.title}",
        "css": _CLASSES[verdict.fits],
        "word": WORDS[verdict.fits],
        "name": name,
        "verdict": verdict,
        "summary": f"{config.model.parameters() / 1e9:.2f} B parameters, batch {config.train.batch_size} x "
        f"{config.data.sequence_length} tokens, remat {' '.join(config.compute.remat)}, attention "
        f"{compiled.attention}; compiled by {compiled.compiler} in {compiled.compile_s:.0f} s.",
        "memory": _memory(verdict),
        "limits": [100 * limit / max(together, room) for limit in (room * MARGIN, room)],
        "note": f"Dashed: the safe limit, {MARGIN:.0%}, and the chip's {room / GIB:.2f} GiB.",
        "largest": [(size(buffer.size_bytes), short(buffer.shapes)) for buffer in compiled.largest[:5]],
        "times": _times(prediction) if prediction else [],
        "speed": _speed(verdict, prediction) if prediction else [],
        "price": [_dollars(kind.replace("_", " "), money) for kind, money in verdict.money.items()],
        "dated": f"In {verdict.price.region}, as read {PRICES_READ}; a run of {config.train.steps:,} steps.",
        "risk": _risk(verdict),
    })  # fmt: skip


def _memory(verdict: Verdict) -> list[_Bar]:
    """Return a bar for each part, begun where the one before ends, and one for all."""
    compiled = verdict.compiled
    parts = {
        "arguments: state and batch": compiled.arguments_bytes,
        "temporaries at their peak": compiled.temporaries_bytes,
        "outputs": compiled.outputs_bytes,
        "code": compiled.code_bytes,
    }
    together, room = compiled.hbm_bytes, CHIP.hbm_bytes
    scale = 100 / max(together, room)
    begins = accumulate(parts.values(), initial=0)
    bars = [
        (label, f"{part / GIB:.2f} GiB", begin * scale, part * scale, "")
        for (label, part), begin in zip(parts.items(), begins, strict=False)
    ]
    css = "all" if together <= room * MARGIN else "over"
    return [*bars, ("together", f"{together / GIB:.2f} GiB", 0, together * scale, css)]


def _times(prediction: Prediction) -> list[_Bar]:
    bounds = prediction.bounds
    times = {
        "arithmetic": ("compute", bounds.compute),
        "memory traffic": ("hbm", bounds.hbm),
        "links in a slice": ("ici", bounds.ici),
        "network between slices": ("dcn", bounds.dcn),
        "exposed collectives, on top": ("", bounds.exposed),
        "a step, likely": ("all", prediction.step_s[1]),
    }
    scale = 100 / (max(duration for _, duration in times.values()) or 1.0)
    return [
        (
            f"{label} (binds)" if bounds.binding == kind else label,
            f"{duration:.3f} s",
            0,
            duration * scale,
            "all" if kind == "all" else "",
        )
        for label, (kind, duration) in times.items()
    ]


def _speed(verdict: Verdict, prediction: Prediction) -> list[_Fact]:
    tokens_slow, tokens, tokens_fast = prediction.tokens_per_s_per_chip
    slow, likely, fast = prediction.step_s
    shares = [f"{share:.1%} {kind.replace('_', '-')}" for kind, share in prediction.mfu.items()]
    return [
        ("tokens/s/chip", f"{tokens:,.0f}", "", [f"{tokens_slow:,.0f} to {tokens_fast:,.0f}"]),
        ("a step", seconds(likely), "", [f"{seconds(fast)} to {seconds(slow)}"]),
        ("MFU", "", "", shares),
        ("collectives", "", "", collectives(verdict) or ["none"]),
    ]


def _dollars(kind: str, money: Money) -> _Fact:
    if money.an_hour is None:
        return kind, "", "not known", []
    details = []
    if money.a_run is not None and money.a_billion_tokens is not None:
        details = [f"${money.a_run:,.0f} a run, ${money.a_billion_tokens:,.2f} a billion tokens"]
    return kind, f"${money.an_hour:,.2f}", "an hour", details


def _risk(verdict: Verdict) -> list[_Fact]:
    risk, config = verdict.risk, verdict.config
    slow, fast = risk.save_s
    fit = {"yes": "fits into", "no": "doesn't fit into", "perhaps": "may not fit into"}[risk.notice]
    every = f"a preemption every {config.checkpoint.preemption_every_h:g} h"
    return [
        (
            "checkpoint", f"{fast:.1f} to {slow:.1f} s", "",
            [f"{fit} the {config.checkpoint.notice_s:g} s notice"],
        ),
        ("save every", f"{risk.interval_s:,.1f} s", "", [risk.interval_reason]),
        ("goodput", f"{risk.goodput:.1%}", "",
         [f"{every}, {risk.recovery_s / 60:g} min to resume (assumed)"]),
        ("state", f"{verdict.compiled.arguments_bytes / GIB:.2f} GiB", "a chip", []),
    ]  # fmt: skip
