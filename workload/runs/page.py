"""Page of a run, or of two over one another: curves, time, interruptions, price, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from views.page import render
from workload.errors import WorkloadError
from workload.runs.goodput import ACCOUNTS
from workload.runs.history import Brief, History, Mark

_EXPLAINED = ACCOUNTS | {"lost": "steps that a later start did again", "down": "between two starts"}
_STATES = {"running": "ok", "done": "ok", "failed": "bad", "silent": "bad"}


@dataclass(frozen=True)
class Shown:
    """A run on a page.

    Attributes:
        history: the run.
        price: so far, as text.
        predicted: until its end, as text.
        paid: how and where the slices are paid for.
        links: text and URL of each.
        commands: what shows more of it.
    """

    history: History
    price: str = "unknown"
    predicted: str = "unknown"
    paid: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()

    @property
    def facts(self) -> dict[str, str]:
        """Return the few numbers to see first, by name."""
        brief, held_out = self.history.brief, self.history.last("eval_loss")
        return {
            "state": brief.state,
            "step": f"{brief.step:,} of {brief.steps:,}",
            "loss": number(brief.loss),
            "validation loss": number(held_out),
            **({"best step": best(brief)} if brief.best else {}),
            "tokens/s": number(brief.tokens_per_s),
            "goodput, all starts": share(brief.goodput),
            "price of its starts": self.price,
            "price, predicted": self.predicted,
            "time left": "–" if brief.ended else span(brief.left_s),
        }


def page(runs: Sequence[Shown], environment: str, clock: str, refresh_s: int = 0, note: str = "") -> str:
    """Return the page of one run or of two.

    Args:
        runs: one or two.
        environment: for the title.
        clock: when they were read.
        refresh_s: seconds after which a browser reads the page again; 0: never.
        note: a line on top, such as why it isn't read again.

    Raises:
        WorkloadError: matplotlib isn't installed.
    """
    try:
        from workload.runs import plots
    except ModuleNotFoundError as error:
        text = f"a run's page needs {error.name}\n    fix: pip install {error.name}"
        raise WorkloadError(text) from None
    names = [shown.history.brief.run for shown in runs]
    facts = [shown.facts for shown in runs]
    return render(Path(__file__).with_name("page.html"), {
        "title": f"{' and '.join(names)} of {environment}", "clock": clock, "refresh_s": refresh_s,
        "note": note, "names": names, "runs": runs, "facts": facts, "keys": max(facts, key=len),
        "css": [_STATES.get(shown.history.brief.state, "warn") for shown in runs],
        "pictures": plots.draw([shown.history for shown in runs]),
        "accounts": _accounts([shown.history for shown in runs]),
        "marks": [
            (name, _at(mark), mark)
            for name, shown in zip(names, runs, strict=True)
            for mark in shown.history.marks
        ],
        "config": _config([shown.history for shown in runs]),
    })  # fmt: skip


def _accounts(runs: Sequence[History]) -> list[tuple[str, str, list[tuple[float, str]]]]:
    """Return the accounts with what they are, and of each run the share in percent and the time."""
    rows = []
    for name, about in _EXPLAINED.items():
        times = [run.time.accounts_s[name] for run in runs]
        if any(times):
            shares = [
                spent / run.time.wall_s for spent, run in zip(times, runs, strict=True) if run.time.wall_s
            ]
            cells = [(100 * part, span(spent)) for part, spent in zip(shares, times, strict=False)]
            rows.append((name, about, cells))
    return sorted(rows, key=lambda row: -row[2][0][0])


def _config(runs: Sequence[History]) -> list[tuple[str, str, list[str]]]:
    """Return the settings: key, CSS class and each run's value; those that differ first."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    rows = [(key, [_value(run.config, key) for run in runs]) for key in keys]
    marked = [(key, "warn" if len(set(values)) > 1 else "", values) for key, values in rows]
    return sorted(marked, key=lambda row: not row[1])


def _value(config: Mapping[str, Any], key: str) -> str:
    return str(config[key]) if key in config else "–"


def _at(mark: Mark) -> str:
    return datetime.fromtimestamp(mark.time_s, UTC).strftime("%Y-%m-%d %H:%M:%S") if mark.time_s else ""


def best(brief: Brief) -> str:
    """Format the best checkpoint's step and loss on held-out tokens: 1,200 (2.346); empty without."""
    return f"{brief.best:,} ({number(brief.best_loss)})" if brief.best else ""


def number(value: float | None) -> str:
    """Format a number with four digits: 5,200, 2.346."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def share(value: float | None) -> str:
    """Format a share as percent."""
    return "–" if value is None else f"{value:.1%}"


def span(seconds: float | None) -> str:
    """Format a duration: 12 s, 3.5 min, 7.2 h."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
