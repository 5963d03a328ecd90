"""Schedules of Cloud Scheduler.

The unix-cron format: https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES = {name: str(n) for n, name in enumerate(_MONTHS, 1)} | {name: str(n) for n, name in enumerate(_DAYS)}
_PART = re.compile(r"(?:\*|(\d+)(?:-(\d+))?)(?:/([1-9]\d*))?")
_LONGEST_DAYS = 8 * 366 + 1  # between two 29ths of February around a year that has none


@dataclass(frozen=True)
class Cron:
    """The numbers of each field; days of the week are 0 to 6 from Sunday.

    `either`: both kinds of days are given, and one of them is enough.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def after(self, epoch_s: float, zone: str) -> float | None:
        """Return the first time after this one, in seconds since the epoch; None if there is none.

        A time that a clock change skips is passed over; one that it repeats is due the first time.
        """
        timezone = ZoneInfo(zone)
        first = datetime.fromtimestamp(epoch_s, timezone)
        for number in range(_LONGEST_DAYS):
            day = first.date() + timedelta(days=number)
            if not self._on(day):
                continue
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    at = datetime.combine(day, time(hour, minute), timezone)
                    moment = at.timestamp()
                    local = datetime.fromtimestamp(moment, timezone)
                    if moment > epoch_s and (local.hour, local.minute) == (hour, minute):
                        return moment
        return None

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_name = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_name if self.either else by_date and by_name


def parse(text: str) -> Cron | None:
    """None for what isn't in the format."""
    fields = [
        re.sub("[a-z]{3}", lambda name: _NAMES.get(name[0], "?"), field) for field in text.lower().split()
    ]
    if len(fields) != len(_RANGES):
        return None
    numbers: list[frozenset[int]] = []
    # Each field is a list of `*`, numbers and ranges, all with an optional step.
    for field, (low, high) in zip(fields, _RANGES, strict=True):
        values: set[int] = set()
        for part in field.split(","):
            match = _PART.fullmatch(part)
            if match is None or not all(low <= int(n) <= high for n in match.groups()[:2] if n):
                return None
            first = int(match[1]) if match[1] else low
            last = int(match[2]) if match[2] else (first if match[1] and not match[3] else high)
            values.update(range(first, last + 1, int(match[3] or 1)))
        numbers.append(frozenset(values))
    minutes, hours, days, months, weekdays = numbers
    either = not (fields[2].startswith("*") or fields[4].startswith("*"))
    return Cron(minutes, hours, days, months, frozenset(day % 7 for day in weekdays), either)
