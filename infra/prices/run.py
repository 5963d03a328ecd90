"""Predicted price of a run, and its limit, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.errors import InputError
from infra.prices.row import dollars as shown


@dataclass(frozen=True)
class RunPrice:
    """A prediction.

    Attributes:
        dollars: None where unknown.
        why: how it was reckoned, or what is missing.
        fix: what makes it known, where it isn't.
        checked: all prices in it were read at their source.
    """

    dollars: float | None
    why: str
    fix: str = ""
    checked: bool = True

    def __str__(self) -> str:
        return f"${shown(self.dollars, checked=self.checked)} ({self.why})"

    def beside(self, spent: float | None) -> dict[str, Any]:
        """Return predicted and spent US dollars as JSON; None where unknown."""
        return {
            "predicted_dollars": None if self.dollars is None else round(self.dollars, 2),
            "dollars": None if spent is None else round(spent, 2),
        }


def of_hours(hourly: float | None, hours: float | None, *, checked: bool = True) -> RunPrice:
    """Predict the price from `hourly` dollars an hour and a number of hours; either may be unknown."""
    if hourly is None:
        fix = "slices of a known price (docs/reference/prices.md)"
        return RunPrice(None, "no price of its slices is known", fix)
    if hours is None:
        return RunPrice(None, "nothing says how long it takes", "--hours N")
    return RunPrice(hourly * hours, f"${shown(hourly)} an hour, {hours:g} h", checked=checked)


def within_limit(predicted: RunPrice, limit: float | None, setting: str) -> None:
    """Refuse a run that costs more than a limit, or may.

    Args:
        predicted: the run's price.
        limit: US dollars; None: there is none.
        setting: where the limit is written, e.g. "fleet:dollarsPerRun".

    Raises:
        InputError: it is above the limit, or unknown, and then it may be.
    """
    if limit is None:
        return
    if predicted.dollars is None:
        raise InputError(
            f"{setting} allows ${limit:,.0f} a run, and this one's price is unknown: {predicted.why}\n"
            f"    fix: {predicted.fix}, or take {setting} out"
        )
    if predicted.dollars > limit:
        raise InputError(
            f"this run would cost {predicted}, {setting} allows ${limit:,.0f}\n"
            f"    fix: a smaller slice or fewer hours, or a larger {setting}"
        )
