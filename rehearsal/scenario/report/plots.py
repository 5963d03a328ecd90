"""The report's pictures, as SVG that can stand inside a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rehearsal.scenario.record import Boot, KillRecord, Record, RunRecord, epoch
from rehearsal.scenario.report.facts import interrupted_step

INK, FAINT, GRID = "#1d2733", "#76828f", "#e4e8ec"
FAULT = "#f0b6b8"
KILL, REFERENCE, INTERRUPTED, TRAINING = "#d1343a", "#9ec5e8", "#17406d", "#d9e4ee"
# In the order of the boot contract; cool for waiting, warm for work, so that the long ones stand out.
STAGES = {
    "identity": "#b9c4cf",
    "network": "#93a7ba",
    "locks": "#6f8aa3",
    "bundle": "#e9a23b",
    "mount-data": "#5aa469",
    "mount-checkpoints": "#86c391",
    "python": "#dd6e42",
    "environment": "#c9b458",
    "barrier": "#7c6bb0",
    "launch": "#3d8b8b",
}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "svg.fonttype": "path",
    "svg.hashsalt": "rehearsal",
}
_WIDTH_IN = 11.0
_NAMED_KILLS = 6
_NAMES = {
    "notice": "preempted, 30 s notice", "power-loss": "power cut, no notice", "crash": "one job killed",
    "maintenance": "maintenance",
}  # fmt: skip
_ENDING = ("notice", "power-loss", "maintenance")  # of the machine; others leave it running
_BUSY_KINDS = {
    "up": "#4878a8", "destroy": "#8b5a83", "recover": "#4878a8", "publish": "#5b7f9d", "done": TRAINING,
    "reach": TRAINING, "kill": FAULT, "kills": FAULT, "ready": "#b08fc7",
}  # fmt: skip


# What a page in the dark has another colour for: its custom property, with the light one as a fallback.
_PROPERTIES = {
    INK: "ink", FAINT: "faint", GRID: "line", TRAINING: "busy", INTERRUPTED: "run",
    REFERENCE: "reference", "#ffffff": "card",
}  # fmt: skip


def timeline(record: Record) -> str:
    """Draw each host's boot stages, training, and kills over time; the scenario's steps on top."""
    rows = sorted({(boot.node, boot.worker) for boot in record.boots})
    if not rows:
        return ""
    height = min(0.34, 9.0 / len(rows))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, 1.5 + 0.5 + height * len(rows)), layout="constrained")
        axes = figure.subplots()
        place = {row: len(rows) - 1 - number for number, row in enumerate(rows)}
        for boot in record.boots:
            _boot(axes, record, boot, place[boot.node, boot.worker])
        _scenario_lane(axes, record, len(rows) + 0.35)
        for kill in record.kills:
            _kill_line(axes, record, kill, rows, place)
        few = len(rows) <= 20
        axes.set_yticks(
            [*(place[row] for row in rows if few or row[1] % 8 == 0), len(rows) + 0.35],
            [*(f"{node}-w{worker}" for node, worker in rows if few or worker % 8 == 0), "scenario"],
        )
        axes.set_ylim(-0.7, len(rows) + 1.0)
        axes.set_xlim(0, max(_at(record, record.end), 0.1))
        axes.set_xlabel("minutes since the start")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        used = {stage.name for boot in record.boots for stage in boot.stages}
        handles: list[Patch | Line2D] = [
            Patch(color=c, label=name) for name, c in STAGES.items() if name in used
        ]
        handles.append(Patch(color=TRAINING, label="up, job running"))
        if record.kills:
            handles.append(Line2D([], [], color=KILL, marker="v", label="interrupted"))
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
        return _svg(figure, "Timeline of the hosts' boot stages, with the kills")


def _boot(axes: Axes, record: Record, boot: Boot, row: int) -> None:
    """Draw a boot's stages; behind them the time until the host's end."""
    start = boot.stages[0].start if boot.stages else record.start
    end = _death(record, boot, start)
    axes.barh(
        row, _at(record, end) - _at(record, start), left=_at(record, start), height=0.62, color=TRAINING
    )
    for stage in boot.stages:
        until = end if stage.end is None else stage.end
        colour = KILL if stage.state == "failed" else STAGES.get(stage.name, FAINT)
        axes.barh(
            row,
            (until - stage.start) / 60,
            left=_at(record, stage.start),
            height=0.62,
            color=colour,
            linewidth=0,
        )


def _death(record: Record, boot: Boot, start: float) -> float:
    """Return the end of a host's boot: a kill of its node, the worker's next boot, or the node's
    destruction.
    """
    ends = [kill.time for kill in record.kills if kill.node == boot.node and kill.how in _ENDING]
    ends += [later.stages[0].start for later in record.boots
             if (later.node, later.worker) == (boot.node, boot.worker) and later.stages]  # fmt: skip
    ends += [step.start for step in record.steps if step.kind == "destroy" and step.text.endswith("tpu")]
    return min((end for end in ends if end > start), default=record.end)


def _scenario_lane(axes: Axes, record: Record, row: float) -> None:
    """Draw the long steps, with their names where there is room."""
    for step in record.steps:
        left, width = _at(record, step.start), (step.end - step.start) / 60
        colour = _BUSY_KINDS.get(step.kind, GRID)
        axes.barh(row, width, left=left, height=0.5, color=colour, linewidth=0.6, edgecolor="white")
        name = _short(step.text)
        if width > _at(record, record.end) * (0.008 + 0.0058 * len(name)):
            light = colour in (TRAINING, GRID, FAULT)
            axes.text(
                left + width / 2, row, name, ha="center", va="center", fontsize=7,
                color=INK if light else "white", clip_on=True,
            )  # fmt: skip


def _short(text: str) -> str:
    return re.sub(r"^(wait|pulumi( preview)?( --[a-z-]+)?|publish the bundle)[: ]+", "", text)[:26]


def _kill_line(
    axes: Axes,
    record: Record,
    kill: KillRecord,
    rows: Sequence[tuple[str, int]],
    place: dict[tuple[str, int], int],
) -> None:
    """Draw a line through the rows of a killed node, with a marker on top."""
    hit = [place[row] for row in rows if row[0] == kill.node and kill.worker in (None, row[1])]
    if not hit:
        return
    at = _at(record, kill.time)
    axes.plot([at, at], [min(hit) - 0.45, max(hit) + 0.45], color=KILL, linewidth=1.6, solid_capstyle="butt")
    axes.plot(at, max(hit) + 0.55, marker="v", color=KILL, markersize=6, clip_on=False)


def loss(record: Record, reference: RunRecord, interrupted: RunRecord) -> str:
    """Both runs' losses on top of each expected, the kills, and their difference below."""
    kills = [
        (interrupted_step(record, kill), kill.how) for kill in record.kills if kill.run == interrupted.name
    ]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, 4.6), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
        for run, colour, width in ((reference, REFERENCE, 5.0), (interrupted, INTERRUPTED, 1.3)):
            label = f"{run.name} ({'never interrupted' if run is reference else f'killed {len(kills)}×'})"
            upper.plot(
                [entry[0] for entry in run.losses], [entry[1] for entry in run.losses],
                color=colour, linewidth=width, label=label, solid_capstyle="round",
            )  # fmt: skip
        expected = {entry[0]: float.fromhex(entry[2]) for entry in reference.losses}
        pair = [
            (n, float.fromhex(exact) - expected[n]) for n, _, exact in interrupted.losses if n in expected
        ]
        lower.plot([n for n, _ in pair], [d for _, d in pair], color=INTERRUPTED, linewidth=1.3)
        for axes in (upper, lower):
            axes.grid(color=GRID, linewidth=0.8)
            for step, _ in kills:
                axes.axvline(step, color=KILL, linewidth=1.0, linestyle=(0, (4, 3)))
        for step, how in kills:
            if len(kills) <= _NAMED_KILLS:
                upper.annotate(
                    _NAMES[how], (step, 1.0), (6, -4), textcoords="offset points", va="top",
                    xycoords=upper.get_xaxis_transform(), fontsize=8, color=KILL,
                )  # fmt: skip
            upper.plot(
                step, 1.0, marker="v", color=KILL, markersize=7, clip_on=False,
                transform=upper.get_xaxis_transform(),
            )  # fmt: skip
        if kills:
            upper.plot([], [], color=KILL, linestyle=(0, (4, 3)), marker="v", label="killed here")
        upper.set_ylabel("loss")
        upper.legend(loc="upper right", facecolor="white", edgecolor="none", framealpha=0.9)
        worst = max((abs(d) for _, d in pair), default=0.0)
        lower.set_ylabel("difference")
        lower.set_xlabel("step")
        if worst == 0:
            lower.set_ylim(-1, 1)
            lower.set_yticks([0])
            lower.text(
                0.995,
                0.72,
                f"exactly 0 at all {len(pair)} steps",
                transform=lower.transAxes,
                ha="right",
                fontsize=8.5,
            )
        figure.align_ylabels()
        return _svg(figure, f"Loss of {interrupted.name} over {reference.name}, with the kills")


def progress(record: Record, run: RunRecord) -> str:
    """Draw the step of a run's checkpoints over time: the gaps are the cost of the kills."""
    # A checkpoint that a restore passes over is a step that was not reached again.
    reported = [event for event in run.events if "step" in event and event["kind"] != "passed-over"]
    points = [(event["time"], event["step"], event["kind"]) for event in reported]
    if len(points) < 2:
        return ""

    starts: list[list[tuple[float, int]]] = [[]]
    for time, step, kind in points:
        if kind == "restore" and starts[-1]:
            starts.append([])
        starts[-1].append((_at(record, epoch(time)), step))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, 2.9), layout="constrained")
        axes = figure.subplots()
        for start in starts:
            axes.plot(*zip(*start, strict=True), color=INTERRUPTED, marker="o", markersize=3, linewidth=1.5)
        for kill in record.kills:
            if kill.run == run.name:
                at = _at(record, kill.time)
                axes.axvline(at, color=KILL, linewidth=1.0, linestyle=(0, (4, 3)))
                axes.plot(at, interrupted_step(record, kill), marker="v", color=KILL, markersize=7)
        axes.set_xlabel("minutes since the start")
        axes.set_ylabel("step")
        axes.grid(color=GRID, linewidth=0.8)
        return _svg(figure, f"Progress of {run.name} over time")


def _at(record: Record, time: float) -> float:
    """Minutes since the scenario began."""
    return (time - record.start) / 60


def _svg(figure: Figure, title: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # The page scales it; the view box keeps its shape. Ids must not meet those of another figure.
    text = re.sub(r'(<svg[^>]*?) width="[^"]+"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]+"', rf'\1 role="img" aria-label="{title}"', text, count=1)
    for colour, name in _PROPERTIES.items():
        text = text.replace(f": {colour}", f": var(--{name}, {colour})")
    prefix = re.sub(r"[^a-z]+", "-", title.lower())[:24]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    return re.sub(r"url\(#", f"url(#{prefix}-", text)
