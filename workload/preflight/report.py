"""Verdict in words and numbers, for the terminal and the page."""

from collections import Counter
from typing import NamedTuple

from views.table import aligned
from workload.preflight import roofline
from workload.preflight.roofline import Prediction
from workload.preflight.slices import CHIP, GIB, PRICES_READ
from workload.preflight.verdict import Money, Verdict

_OF_A_MODULE = (
    "of a module, FLOPs are those of its products as traced; its own kernels' are unknown",
    "its memory traffic is the optimizer's, and each temporary once; what passes more often is unknown",
)
_SHORT_S = 0.05
WORDS = {"yes": "FITS", "no": "DOES NOT FIT", "uncertain": "UNCERTAIN"}
LARGEST = "largest temporaries; those with disjoint lifetimes share memory"
TOGETHER = "together"
STEP = "a step, likely"


class Fact(NamedTuple):
    """Figure of the report: its name, the figure, and its explanation."""

    name: str
    value: str
    detail: str = ""


def text(verdict: Verdict, name: str) -> str:
    """Format the report of `workload preflight`; `name` is the config's."""
    lines = [f"{name} on {verdict.slices.title}: {WORDS[verdict.fits]}", f"  {verdict.reason}"]
    lines.append(f"  {summary(verdict)}")
    if parts := memory(verdict):
        lines += ["", "memory of a chip", *(f"  {gib(part):>11}  {label}" for label, part in parts.items())]
        lines += [f"  {LARGEST}", *(f"  {size:>11}  {shapes}" for size, shapes in largest(verdict))]
    if verdict.prediction:
        bounds = times(verdict, verdict.prediction)
        lines += ["", "time of a step, predicted: no TPU has run this"]
        lines += [f"  {duration:9.3f} s  {label}" for label, duration in bounds.items()]
        lines += [*_facts(speed(verdict, verdict.prediction)), "", "how far to trust the time"]
        lines += [f"  {line}" for line in trust(verdict)]
    lines += ["", f"price {dated(verdict)}", *_facts(price(verdict)), "", "risk", *_facts(risk(verdict))]
    return "\n".join(lines)


def _facts(facts: list[Fact]) -> list[str]:
    return aligned([("", name, ": ".join(filter(None, figures))) for name, *figures in facts])


def summary(verdict: Verdict) -> str:
    """Describe the run and its compilation in a line."""
    config, compiled, batch = verdict.config, verdict.compiled, verdict.config.train.batch_size
    return (
        f"{verdict.parameters / 1e9:.2f} B parameters, {batch} x {config.data.sequence_length} tokens"
        f" a step, {batch / verdict.slices.chips:g} a chip, remat {' '.join(config.compute.remat)},"
        f" attention {compiled.attention}; compiled by {compiled.compiler} in {compiled.compile_s:.0f} s;"
        " nothing here was measured on a TPU"
    )


def gib(size_bytes: float) -> str:
    """Format a size in GiB, so that sizes below one another compare."""
    return f"{size_bytes / GIB:.2f} GiB"


def seconds(seconds: float) -> str:
    """Format a duration in s or ms."""
    return f"{seconds:.3f} s" if seconds >= 0.1 or not seconds else f"{seconds * 1e3:.3g} ms"


def memory(verdict: Verdict) -> dict[str, int]:
    """Return the bytes of each part of a chip's memory, and together; empty for a refused step."""
    compiled = verdict.compiled
    return {} if compiled.refused else {
        "arguments: parameters, optimizer state, batch": compiled.arguments_bytes,
        "temporaries, at their peak": compiled.temporaries_bytes,
        "outputs that replace no argument": compiled.outputs_bytes,
        "code": compiled.code_bytes,
        TOGETHER: compiled.hbm_bytes,
    }  # fmt: skip


def largest(verdict: Verdict) -> list[tuple[str, str]]:
    """Return sizes and first three shapes of the largest temporaries."""
    rows = []
    for buffer in verdict.compiled.largest[:5]:
        shapes = buffer.shapes.split(", ")
        more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        rows.append((gib(buffer.size_bytes), ", ".join(shapes[:3]) + more))
    return rows


def times(verdict: Verdict, prediction: Prediction) -> dict[str, float]:
    """Return the seconds of each bound of a step, and the likely ones of all of it."""
    collectives = verdict.compiled.collectives
    waited = sum(collective.waits_s > 0 for collective in collectives)
    rate = f"{CHIP.ici_measured_bytes_per_s / 1e9:.0f} GB/s"
    labels = {
        "compute": f"arithmetic, against {CHIP.bf16_flops_per_s / 1e12:.0f} TFLOP/s",
        "hbm": f"memory, against {CHIP.hbm_bytes_per_s / 1e9:.0f} GB/s",
        "ici": f"links in a slice, against {CHIP.ici_bytes_per_s / 1e9:.0f} GB/s sent a chip",
        "dcn": f"network between slices, against {CHIP.dcn_bytes_per_s_per_host / 1e9:.0f} GB/s a host",
        "exposed": f"waiting for {waited} of {len(collectives)} collectives, at the measured {rate}",
    }
    bounds = prediction.bounds
    return {
        f"{label} (binds)" if bounds.binding == name else label: getattr(bounds, name)
        for name, label in labels.items()
    } | {STEP: prediction.step_s[1]}


def speed(verdict: Verdict, prediction: Prediction) -> list[Fact]:
    """Return rate, duration of a step, MFU and collectives."""
    tokens_slow, _, tokens_fast = prediction.tokens_per_s_per_chip
    maxtext_slow, _, maxtext_fast = prediction.as_maxtext
    slow, likely, fast = prediction.step_s
    shares = [f"{share:.1%} {kind.replace('_', '-')}" for kind, share in prediction.mfu.items()]
    sizes: Counter[tuple[str, str]] = Counter()
    for collective in verdict.compiled.collectives:
        where = "between slices" if collective.across else "in a slice"
        sizes[collective.kind, where] += collective.size_bytes * collective.times
    exchanged = [f"{size / 1e9:.3g} GB {kind} {where}" for (kind, where), size in sizes.most_common()]
    step = f"range {seconds(fast)} to {seconds(slow)}"
    if likely < _SHORT_S:
        step += f"; below {_SHORT_S * 1e3:.0f} ms it also waits for launches and latencies, not included"
    return [
        Fact("tokens/s/chip", f"{tokens_slow:,.0f} to {tokens_fast:,.0f}", "this program"),
        Fact("", f"{maxtext_slow:,.0f} to {maxtext_fast:,.0f}", "as MaxText would run it"),
        Fact("a step", seconds(likely), step),
        Fact("MFU", "", ", ".join(shares)),
        Fact("collectives a step", "", ", ".join(exchanged) or "none"),
    ]


def trust(verdict: Verdict) -> list[str]:
    """Describe the runs that the prediction is made from, and its error on them."""
    method, all_sizes = verdict.method, roofline.method()
    low, mean, high = method.shares
    least, most = method.shares_of_others
    models = " and ".join(sorted({anchor.model for anchor in method.anchors}))
    others = sum(run.interval for run in method.held_out)
    error = all_sizes.error(verdict.parameters)
    return [
        f"as MaxText would: its published runs of {models} reach {low:.0%} to {high:.0%} of this roofline,"
        f" {mean:.0%} on average ({len(method.anchors)} runs);"
        f" held out one by one, runs are missed by {error:.0%} at most",
        f"this program: {least:.0%} to {most:.0%} of its roofline, as {others} runs of other trainers in JAX;"
        f" no TPU has run it; waits up to {method.waited:.0%} of a step are in those shares",
        *(_OF_A_MODULE if verdict.compiled.parameters else ()),
    ]


def dated(verdict: Verdict) -> str:
    """Return region and date of the prices, and the length of the run."""
    return f"in {verdict.price.region}, as read {PRICES_READ}; a run of {verdict.config.train.steps:,} steps"


def price(verdict: Verdict) -> list[Fact]:
    """Return the price of each kind of slice."""
    return [_price(kind.replace("_", " "), money) for kind, money in verdict.money.items()]


def _price(kind: str, money: Money) -> Fact:
    if money.an_hour is None:
        return Fact(kind, "not known")
    detail = ""
    if money.a_billion_tokens is not None and money.a_run is not None:
        detail = f"${money.a_run:,.0f} a run, ${money.a_billion_tokens:,.2f} a billion tokens"
    return Fact(kind, f"${money.an_hour:,.2f} an hour", detail)


def risk(verdict: Verdict) -> list[Fact]:
    """Return the duration of a checkpoint, the interval between them, and the goodput."""
    risk, checkpoint = verdict.risk, verdict.config.checkpoint
    slow, fast = risk.save_s
    fit = {"yes": "fits into", "no": "doesn't fit into", "perhaps": "may not fit into"}[risk.notice]
    fit += f" the {checkpoint.notice_s:g} s notice"
    fit += "" if risk.notice == "yes" else "; otherwise the run resumes from its last interval"
    every = f"a preemption every {checkpoint.preemption_every_h:g} h"
    return [
        Fact("checkpoint", f"{fast:.1f} to {slow:.1f} s", fit),
        Fact("save every", f"{risk.interval_s:,.1f} s", risk.interval_reason),
        Fact("goodput", f"{risk.goodput:.1%}", f"{every}, {risk.recovery_s / 60:g} min to resume (assumed)"),
    ]
