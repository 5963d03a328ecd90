"""Pictures of runs' curves. The import of matplotlib takes half a second: import this module late."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from views.picture import BAD, FAINT, RUN, WARN, svg
from workload.runs.history import History

_POINTS = 1000  # of a curve
_SIZE_IN = (5.4, 2.7)
_COLOURS = (RUN, WARN)
_STEP, _TOKENS = "step", "tokens"
_CURVES = {
    "loss": ("loss", "eval_loss"), "learning rate": ("learning_rate",), "gradient norm": ("gradient_norm",),
    "tokens/s": ("tokens_per_s_per_chip",),
}  # fmt: skip
_NAMES = {"eval_loss": "validation"}


def draw(runs: Sequence[History]) -> list[Markup]:
    """Draw one run's curves by step, or two runs' over one another, the loss by tokens too."""
    drawn = [_picture(title, curves, runs, _STEP) for title, curves in _CURVES.items()]
    if len(runs) > 1 and all(run.tokens_a_step for run in runs):
        drawn.insert(1, _picture("loss", _CURVES["loss"], runs, _TOKENS))
    return [picture for picture in drawn if picture]


def _picture(title: str, curves: Sequence[str], runs: Sequence[History], by: str) -> Markup | None:
    """Draw some curves of all runs; None if no run has a point."""
    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    axes = figure.subplots()
    for run, colour in zip(runs, _COLOURS, strict=False):
        scale = (run.tokens_a_step or 1) if by == _TOKENS else 1
        factor = run.brief.chips or 1 if title == "tokens/s" else 1
        for curve in curves:
            points = [
                (row.step * scale, row.numbers[curve] * factor) for row in run.rows if curve in row.numbers
            ]
            if points:
                held_out = curve in _NAMES
                label = _NAMES.get(curve, title if len(runs) == 1 else "")
                label = f"{run.brief.run} {label}".strip() if len(runs) > 1 else label
                axes.plot(
                    *zip(*thinned(points), strict=True), label=label, color=colour,
                    linewidth=1.2, alpha=0.75 if held_out else 1.0, zorder=3 if held_out else 2,
                    marker="o" if held_out or len(points) == 1 else "", markersize=3.5,
                    linestyle="--" if held_out else "-",
                )  # fmt: skip
    if not axes.lines:
        return None
    if len(axes.lines) > 1:
        axes.legend()
    if len(runs) == 1:
        _mark(axes, runs[0])
    axes.set_title(f"{title} by {by}", loc="left", fontsize=10)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if title == "tokens/s":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylim(0, 1.05 * axes.dataLim.y1)
    axes.grid(axis="y", linewidth=0.8)
    return svg(figure, f"{title} by {by}")


def _mark(axes: Axes, run: History) -> None:
    """Draw a line where a start ended or began anew."""
    for mark in run.marks:
        colour, style = (FAINT, (0, (1, 2))) if mark.kind == "restart" else (BAD, (0, (4, 3)))
        axes.axvline(mark.step, color=colour, linewidth=1.0, linestyle=style, zorder=1)


def thinned(points: Sequence[tuple[float, float]], most: int = _POINTS) -> list[tuple[float, float]]:
    """Return at most so many points: of each part of the curve the lowest and the highest."""
    if len(points) <= most:
        return [*points]
    result: list[tuple[float, float]] = []
    parts = most // 2
    for n in range(parts):
        part = points[n * len(points) // parts : (n + 1) * len(points) // parts]
        result += sorted({min(part, key=itemgetter(1)), max(part, key=itemgetter(1))})
    return result
