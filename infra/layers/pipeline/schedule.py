"""Schedules as Cloud Scheduler takes them: five fields, as in crontab(5).

https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules
"""

from __future__ import annotations

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # days of each month, of February in a leap year


def parse(text: str) -> tuple[frozenset[int], ...]:
    """Return minutes, hours, days, months and weekdays (0 and 7: Sunday). Raises ValueError."""
    fields = text.split()
    if len(fields) != len(_RANGES):
        raise ValueError(f"{len(fields)} fields")
    names: tuple[list[str], ...] = ([], [], [], ["", *_MONTHS], _DAYS)
    return tuple(_field(*field) for field in zip(fields, _RANGES, names, strict=True))


def fires(text: str) -> bool:
    """Return whether a schedule ever comes: "0 0 31 2 *" doesn't. Raises ValueError for an invalid one."""
    _, _, days, months, _ = parse(text)
    # crontab(5): a restricted weekday is enough, and every weekday occurs in every month.
    return text.split()[4] != "*" or any(min(days) <= _LONGEST[month - 1] for month in months)


def _field(text: str, limits: tuple[int, int], names: list[str]) -> frozenset[int]:
    values: set[int] = set()
    for part in text.lower().split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isascii() and step.isdigit() and int(step)):
            raise ValueError(part)
        if span == "*":
            low, high = limits
        else:
            first, dash, last = span.partition("-")
            low = _number(first, names)
            high = _number(last, names) if dash else (limits[1] if step else low)
        if not limits[0] <= low <= high <= limits[1]:
            raise ValueError(part)
        values.update(range(low, high + 1, int(step or 1)))
    return frozenset(values)


def _number(text: str, names: list[str]) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    if text and text in names:
        return names.index(text)
    raise ValueError(text)
