"""Verdict as text for a terminal."""

from collections import Counter

from workload.preflight import roofline
from workload.preflight.roofline import Prediction
from workload.preflight.slices import CHIP, GIB, PRICES_READ
from workload.preflight.verdict import Money, Verdict

_SHORT_S = 0.05
WORDS = {"yes": "FITS", "no": "DOES NOT FIT", "uncertain": "UNCERTAIN"}


def text(verdict: Verdict, name: str) -> str:
    """Format the report of `workload preflight`.

    Args:
        verdict: the result.
        name: of the config, for the title.
    """
    lines = [*_title(verdict, name), "", *_memory(verdict)]
    if verdict.prediction:
        lines += ["", *_time(verdict, verdict.prediction), "", *_published(verdict)]
    lines += ["", *_money(verdict), "", *_risk(verdict)]
    return "\n".join(lines)


def _title(verdict: Verdict, name: str) -> list[str]:
    config, slices = verdict.config, verdict.slices
    batch = config.train.batch_size
    examples = f"{batch} x {config.data.sequence_length} tokens a step, {batch / slices.chips:g} a chip"
    remat = " ".join(config.compute.remat)
    return [
        f"{name} on {slices.title}: {WORDS[verdict.fits]}",
        f"  {verdict.reason}",
        f"  {config.model.parameters() / 1e9:.2f} B parameters, {examples}, remat {remat},"
        f" attention {verdict.compiled.attention}",
        f"  compiled by {verdict.compiled.compiler} in {verdict.compiled.compile_s:.0f} s;"
        " nothing here was measured on a TPU",
    ]


def _memory(verdict: Verdict) -> list[str]:
    compiled = verdict.compiled
    lines = ["memory, a chip"]
    if compiled.refused:
        return [*lines, f"  {compiled.refused}"]
    for label, part in (
        ("arguments: parameters, optimizer state", compiled.arguments_bytes),
        ("temporaries, at their peak", compiled.temporaries_bytes),
        ("outputs that replace no argument", compiled.outputs_bytes),
        ("code", compiled.code_bytes),
        ("together", compiled.hbm_bytes),
    ):
        lines.append(f"  {size(part):>11}  {label}")
    lines.append("  largest temporaries (those with disjoint lifetimes share memory)")
    for buffer in compiled.largest[:5]:
        lines.append(f"  {size(buffer.size_bytes):>11}  {short(buffer.shapes)}")
    return lines


def size(size_bytes: int) -> str:
    """Format a size in GiB or MiB."""
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB / 100 else f"{size_bytes / 2**20:.2f} MiB"


def seconds(seconds: float) -> str:
    """Format a duration in s or ms."""
    return f"{seconds:.3f} s" if seconds >= 0.1 or not seconds else f"{seconds * 1e3:.3g} ms"


def short(shapes: str) -> str:
    """Shorten a list of shapes to its first three."""
    shown = shapes.split(", ")
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _time(verdict: Verdict, prediction: Prediction) -> list[str]:
    bounds = prediction.bounds
    lines = ["time, predicted: no TPU has run this"]
    for name, label in (
        ("compute", f"arithmetic, against {CHIP.bf16_flops_per_s / 1e12:.0f} TFLOP/s"),
        ("hbm", f"memory, against {CHIP.hbm_bytes_per_s / 1e9:.0f} GB/s"),
        ("ici", f"links in a slice, against {CHIP.ici_bytes_per_s / 1e9:.0f} GB/s sent a chip"),
        ("dcn", f"network between slices, against {CHIP.dcn_bytes_per_s_per_host / 1e9:.0f} GB/s a host"),
    ):
        mark = "  <- binds" if bounds.binding == name else ""
        lines.append(f"  {seconds(getattr(bounds, name)):>11}  {label}{mark}")
    hidden = sum(collective.hidden for collective in verdict.compiled.collectives)
    of = f"{len(verdict.compiled.collectives) - hidden} of {len(verdict.compiled.collectives)} collectives"
    lines.append(f"  {seconds(bounds.exposed):>11}  waiting for {of}, on top")
    slow, likely, fast = prediction.step_s
    lines.append(f"  {seconds(likely):>11}  a step, likely ({seconds(fast)} to {seconds(slow)})")
    slow, likely, fast = prediction.tokens_per_s_per_chip
    lines.append(f"  {likely:>11,.0f}  tokens/s/chip ({slow:,.0f} to {fast:,.0f})")
    shares = ", ".join(f"{share:.1%} {name}" for name, share in prediction.mfu.items())
    lines.append(f"               MFU {shares}")
    lines += [f"               {line}" for line in collectives(verdict)]
    if prediction.step_s[1] < _SHORT_S:
        text = f"a step below {_SHORT_S * 1e3:.0f} ms also waits for launches and latencies, not included"
        lines.append(f"               {text}")
    return lines


def collectives(verdict: Verdict) -> list[str]:
    """Format the bytes per step of each kind of collective."""
    sizes: Counter[tuple[str, str]] = Counter()
    for collective in verdict.compiled.collectives:
        where = "between slices" if collective.across else "in a slice"
        sizes[collective.kind, where] += collective.size_bytes * collective.times
    return [f"{size / 1e9:.3g} GB {kind} {where} a step" for (kind, where), size in sizes.most_common()]


def _published(verdict: Verdict) -> list[str]:
    method, all_sizes = verdict.method, roofline.method()
    low, mean, high = method.shares
    models = sorted({anchor.model for anchor in method.anchors})
    return [
        "how far to trust the time",
        f"  MaxText's published runs of {' and '.join(models)} reach {low:.0%} to {high:.0%} of this"
        f" roofline, {mean:.0%} on average ({len(method.anchors)} runs)",
        f"  cross-validation error: {method.error():.0%} on a run left out, on a model left out"
        f" {all_sizes.error_on_another_model():.0%} ({len(all_sizes.anchors)} runs)",
        "  this program is assumed to reach MaxText's share; no TPU has run it",
    ]


def _money(verdict: Verdict) -> list[str]:
    lines = [f"price in {verdict.price.region}, as read {PRICES_READ}"]
    for kind, money in verdict.money.items():
        lines.append(f"  {kind.replace('_', ' '):<10} {_amounts(money, verdict.config.train.steps)}")
    return lines


def _amounts(money: Money, steps: int) -> str:
    if money.an_hour is None:
        return "not known"
    shown = f"${money.an_hour:,.2f} an hour"
    if money.a_billion_tokens is not None and money.a_run is not None:
        shown += f", ${money.a_billion_tokens:,.2f} a billion tokens, ${money.a_run:,.0f} for {steps} steps"
    return shown


def _risk(verdict: Verdict) -> list[str]:
    risk, config = verdict.risk, verdict.config
    slow, fast = risk.save_s
    notice_s = config.checkpoint.notice_s
    fit = {"yes": "fits into", "no": "doesn't fit into", "perhaps": "may not fit into"}[risk.notice]
    fit += f" the {notice_s:g} s notice"
    digits = 0 if risk.interval_s >= 10 else 1
    relies = "" if risk.notice == "yes" else "; otherwise the run resumes from its last interval"
    return [
        "risk",
        f"  a checkpoint takes {fast:.1f} to {slow:.1f} s to write: it {fit}{relies}",
        f"  a save every {risk.interval_s:.{digits}f} s: {risk.interval_reason}",
        f"  goodput {risk.goodput:.1%} with a preemption every {config.checkpoint.preemption_every_h:g} h"
        f" and {risk.recovery_s / 60:g} min until the run resumes (assumed)",
    ]
