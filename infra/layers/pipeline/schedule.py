"""Schedules as Cloud Scheduler takes them: five fields, as in crontab(5).

https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules
"""

from __future__ import annotations

from datetime import date, timedelta

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_SPAN_DAYS = 8 * 366  # a 29th of February on a given weekday comes within 28 years; on any, within 8


def parse(text: str) -> tuple[frozenset[int], ...]:
    """Minutes, hours, days, months and weekdays (0: Sunday). Raises ValueError."""
    fields = text.split()
    if len(fields) != len(_RANGES):
        raise ValueError(f"{len(fields)} fields")
    names: tuple[list[str], ...] = ([], [], [], ["", *_MONTHS], _DAYS)
    found = [_field(*one) for one in zip(fields, _RANGES, names, strict=True)]
    found[4] = frozenset(day % 7 for day in found[4])
    return tuple(found)


def fires(text: str, start: date) -> bool:
    """Whether it ever comes: "0 0 31 2 *" doesn't. Raises ValueError for what is no schedule."""
    _, _, days, months, weekdays = parse(text)
    by_day, by_weekday = text.split()[2] != "*", text.split()[4] != "*"
    for offset in range(_SPAN_DAYS):
        day = start + timedelta(days=offset)
        if day.month not in months:
            continue
        on_day, on_weekday = day.day in days, day.isoweekday() % 7 in weekdays
        # crontab(5): where both are restricted, either is enough.
        if (on_day or on_weekday) if by_day and by_weekday else (on_day and on_weekday):
            return True
    return False


def _field(text: str, limits: tuple[int, int], names: list[str]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, _, step = part.partition("/")
        if step and not (step.isdigit() and int(step)):
            raise ValueError(part)
        if span == "*":
            low, high = limits
        else:
            first, dash, last = span.partition("-")
            low = _number(first, names)
            high = _number(last, names) if dash else (limits[1] if step else low)
        if not limits[0] <= low <= high <= limits[1]:
            raise ValueError(part)
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, names: list[str]) -> int:
    if text.isdigit():
        return int(text)
    if text and text in names:
        return names.index(text)
    raise ValueError(text)
