"""Verdict as an HTML page: fit, memory as a waterfall, time, price and risk."""

from itertools import accumulate
from pathlib import Path

from views.page import render
from workload.preflight import report
from workload.preflight.slices import CHIP, GIB
from workload.preflight.verdict import MARGIN, Verdict

_CLASSES = {"yes": "ok", "uncertain": "warn", "no": "bad"}
_Bar = tuple[str, str, float, float, str]
"""Label, value, begin and width in percent of the track, and CSS class."""


def page(verdict: Verdict, name: str) -> str:
    """Return the page of `workload preflight --html`; `name` is the config's."""
    together, room = verdict.compiled.hbm_bytes, CHIP.hbm_bytes
    return render(Path(__file__).with_name("page.html"), {
        "title": f"{report.WORDS[verdict.fits].lower()}: {name} on {verdict.slices.title}",
        "css": _CLASSES[verdict.fits],
        "name": name,
        "verdict": verdict,
        "report": report,
        "memory": _memory(parts) if (parts := report.memory(verdict)) else [],
        "limits": [100 * limit / max(together, room) for limit in (room * MARGIN, room)],
        "note": f"Dashed: the safe limit, {MARGIN:.0%}, and the chip's {room / GIB:.2f} GiB.",
        "times": _times(report.times(verdict, verdict.prediction)) if verdict.prediction else [],
    })  # fmt: skip


def _memory(parts: dict[str, int]) -> list[_Bar]:
    """Return a bar for each part, begun where the one before ends, and one for all."""
    together, room = parts[report.TOGETHER], CHIP.hbm_bytes
    scale = 100 / max(together, room)
    begins = accumulate(parts.values(), initial=0)
    bars = [
        (label, report.gib(part), begin * scale, part * scale, "")
        for (label, part), begin in zip(parts.items(), begins, strict=False)
    ]
    css = "all" if together <= room * MARGIN else "over"
    return [*bars[:-1], (report.TOGETHER, report.gib(together), 0.0, together * scale, css)]


def _times(times: dict[str, float]) -> list[_Bar]:
    scale = 100 / (max(times.values()) or 1.0)
    return [
        (label, f"{duration:.3f} s", 0.0, duration * scale, "all" if label == report.STEP else "")
        for label, duration in times.items()
    ]
