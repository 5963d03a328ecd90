"""The report's pictures."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rehearsal.scenario.record import Boot, KillRecord, Record, RunRecord, epoch
from rehearsal.scenario.report.facts import interrupted_step
from views.picture import BAD, BUSY, CARD, FAINT, FILL, GRID, INK, RUN, svg

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
HOW = {
    "notice": "preempted, 30 s notice", "power-loss": "power cut, no notice", "crash": "one job killed",
    "maintenance": "maintenance", "reboot": "a host rebooted",
}  # fmt: skip
"""Labels of the kinds of kills at training runs."""
_ENDING = ("notice", "power-loss", "maintenance")  # of the machine; others leave it running
_WIDTH_IN = 11.0
_NAMED_KILLS = 6
# By kind of step: colour in the scenario's lane and label in the legend.
_UP, _WORK, _FAULT = ("#4878a8", "up, recover, publish"), (BUSY, "job runs"), ("#f0b6b8", "kill")
_LANE = {
    "up": _UP, "recover": _UP, "publish": _UP, "destroy": ("#8b5a83", "destroy"), "done": _WORK,
    "reach": _WORK, "kill": _FAULT, "kills": _FAULT, "ready": ("#b08fc7", "wait for boots"),
}  # fmt: skip
_OTHER = (GRID, "other steps")
_KILL_LINE: dict[str, Any] = {"color": BAD, "linewidth": 1.0, "linestyle": (0, (4, 3))}


def timeline(record: Record) -> Markup | None:
    """Draw each host's boot stages, training, and kills over time; the scenario's steps on top."""
    rows = sorted({(boot.node, boot.worker) for boot in record.boots})
    if not rows:
        return None
    height = min(0.34, 9.0 / len(rows))
    figure = Figure(figsize=(_WIDTH_IN, 2.2 + height * len(rows)), layout="constrained")
    axes = figure.subplots()
    place = {row: len(rows) - 1 - number for number, row in enumerate(rows)}
    lane = len(rows) + 0.35
    for boot in record.boots:
        _draw_boot(axes, record, boot, place[boot.node, boot.worker])
    _draw_lane(axes, record, lane)
    for kill in record.kills:
        hit = [place[row] for row in rows if row[0] == kill.node and kill.worker in (None, row[1])]
        if hit:
            at = _at(record, kill.time)
            axes.plot([at, at], [min(hit) - 0.45, max(hit) + 0.45], color=BAD, linewidth=1.6)
            axes.plot(at, max(hit) + 0.55, marker="v", color=BAD, markersize=6, clip_on=False)
    labelled = [row for row in rows if len(rows) <= 20 or row[1] % 8 == 0]
    axes.set_yticks(
        [*(place[row] for row in labelled), lane],
        [*(f"{node}-w{worker}" for node, worker in labelled), "scenario"],
    )
    axes.set(
        ylim=(-0.7, len(rows) + 1.0),
        xlim=(0, max(_at(record, record.end), 0.1)),
        xlabel="minutes since the start",
    )
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", linewidth=0.8)
    stages = {stage.name for boot in record.boots for stage in boot.stages}
    steps = dict(_LANE.get(step.kind, _OTHER) for step in record.steps) | dict([_WORK])
    handles: list[Patch | Line2D] = [
        *(Patch(color=colour, label=name) for name, colour in STAGES.items() if name in stages),
        *(Patch(color=colour, label=name) for colour, name in steps.items()),
    ]
    if record.kills:
        handles.append(Line2D([], [], color=BAD, marker="v", label="interrupted"))
    figure.legend(handles=handles, loc="outside lower center", ncols=7)
    return svg(figure, "Timeline of the hosts' boot stages, with the kills")


def _draw_boot(axes: Axes, record: Record, boot: Boot, row: int) -> None:
    """Draw a boot's stages; behind them the time until the host's end."""
    start = boot.stages[0].start if boot.stages else record.start
    end = ended(record, boot, start)
    axes.barh(row, (end - start) / 60, left=_at(record, start), height=0.62, color=BUSY)
    for stage in boot.stages:
        length = ((end if stage.end is None else stage.end) - stage.start) / 60
        colour = BAD if stage.state == "failed" else STAGES.get(stage.name, FAINT)
        axes.barh(row, length, left=_at(record, stage.start), height=0.62, color=colour, linewidth=0)


def ended(record: Record, boot: Boot, start: float) -> float:
    """Return the end of a boot: a kill of its node, the worker's next boot, or the node's destruction."""
    ends = [kill.time for kill in record.kills if kill.node == boot.node and kill.how in _ENDING]
    ends += [later.stages[0].start for later in record.boots
             if (later.node, later.worker) == (boot.node, boot.worker) and later.stages]  # fmt: skip
    ends += [step.start for step in record.steps if step.kind == "destroy" and step.text.endswith("tpu")]
    return min((end for end in ends if end > start), default=record.end)


def _draw_lane(axes: Axes, record: Record, row: float) -> None:
    """Draw the scenario's steps, with their names where there is room."""
    for step in record.steps:
        left, width = _at(record, step.start), (step.end - step.start) / 60
        colour, _ = _LANE.get(step.kind, _OTHER)
        axes.barh(row, width, left=left, height=0.5, color=colour, linewidth=0.6, edgecolor=CARD)
        name = re.sub(r"^(wait|pulumi( preview)?( --[a-z-]+)?|publish the bundle)[: ]+", "", step.text)[:26]
        if width > _at(record, record.end) * (0.008 + 0.0058 * len(name)):
            ink = INK if colour in (BUSY, GRID) else CARD
            axes.text(left + width / 2, row, name, ha="center", va="center", fontsize=7, color=ink)


def loss(record: Record, reference: RunRecord, interrupted: RunRecord) -> Markup:
    """Draw both runs' losses, one on top of the other, the kills, and their difference below."""
    kills = [kill for kill in record.kills if kill.run == interrupted.name]
    figure = Figure(figsize=(_WIDTH_IN, 4.8), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
    for run, colour, width in ((reference, FILL, 5.0), (interrupted, RUN, 1.3)):
        label = f"{run.name} ({'never interrupted' if run is reference else f'killed {len(kills)}×'})"
        steps, losses, _ = zip(*run.losses, strict=True)
        upper.plot(steps, losses, color=colour, linewidth=width, label=label, solid_capstyle="round")
    expected = {step: float.fromhex(exact) for step, _, exact in reference.losses}
    pairs = [(n, float.fromhex(exact) - expected[n]) for n, _, exact in interrupted.losses if n in expected]
    lower.plot([n for n, _ in pairs], [difference for _, difference in pairs], color=RUN, linewidth=1.3)
    _draw_kills(record, kills, upper, lower)
    for axes in (upper, lower):
        axes.grid(linewidth=0.8)
    upper.set_ylabel("loss")
    lower.set(ylabel="difference", xlabel="step")
    if not any(difference for _, difference in pairs):
        lower.set(ylim=(-1, 1), yticks=[0])
        text = f"exactly 0 at all {len(pairs)} steps"
        lower.text(0.995, 0.72, text, transform=lower.transAxes, ha="right", fontsize=8.5)
    figure.align_ylabels()
    # Below the axes it hides neither a line nor the label of a kill.
    figure.legend(loc="outside lower center", ncols=3)
    return svg(figure, f"Loss of {interrupted.name} over {reference.name}, with the kills")


def _draw_kills(record: Record, kills: list[KillRecord], upper: Axes, lower: Axes) -> None:
    """Draw a line through both axes at each kill's step, with its kind where they are few."""
    top = upper.get_xaxis_transform()
    for number, kill in enumerate(kills):
        step = interrupted_step(record, kill)
        label = "" if number else "killed here"
        for axes in (upper, lower):
            axes.axvline(step, **_KILL_LINE)
        upper.plot(step, 1.0, "v", color=BAD, markersize=7, clip_on=False, transform=top, label=label)
        if len(kills) <= _NAMED_KILLS:
            upper.annotate(
                HOW[kill.how], (step, 1.0), (6, -4), xycoords=top, textcoords="offset points", va="top",
                fontsize=8, color=BAD,
            )  # fmt: skip


def progress(record: Record, run: RunRecord) -> Markup | None:
    """Draw the step of a run's checkpoints over time: the gaps are the cost of the kills."""
    # A checkpoint that a restore passes over is a step that was not reached again.
    events = [event for event in run.events if "step" in event and event["kind"] != "passed-over"]
    if len(events) < 2:
        return None
    starts: list[list[tuple[float, int]]] = [[]]
    for event in events:
        if event["kind"] == "restore" and starts[-1]:
            starts.append([])
        starts[-1].append((_at(record, epoch(event["time"])), event["step"]))
    figure = Figure(figsize=(_WIDTH_IN, 2.9), layout="constrained")
    axes = figure.subplots()
    for start in starts:
        axes.plot(*zip(*start, strict=True), color=RUN, marker="o", markersize=3, linewidth=1.5)
    for kill in record.kills:
        if kill.run == run.name:
            at = _at(record, kill.time)
            axes.axvline(at, **_KILL_LINE)
            axes.plot(at, interrupted_step(record, kill), marker="v", color=BAD, markersize=7)
    axes.set(xlabel="minutes since the start", ylabel="step")
    axes.grid(linewidth=0.8)
    return svg(figure, f"Progress of {run.name} over time")


def _at(record: Record, time: float) -> float:
    """Minutes since the scenario began."""
    return (time - record.start) / 60
