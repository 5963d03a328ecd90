"""Time series: points of a metric on a resource, in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_KEPT_S = 2 * 24 * 3600.0

Labels = frozenset[tuple[str, str]]


@dataclass
class Series:
    """The points of one metric with one set of labels, oldest first.

    Attributes:
        metric: its type, such as `logging.googleapis.com/user/boot-failed`.
        resource: type of the monitored resource.
        resource_labels, metric_labels: of the series.
        times_s, values: virtual seconds since the epoch, and numbers; true counts as 1.
    """

    metric: str
    resource: str
    resource_labels: Mapping[str, str]
    metric_labels: Mapping[str, str]
    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def within(self, begin_s: float, end_s: float) -> list[float]:
        """Values of the points in (begin, end]."""
        return self.values[bisect_right(self.times_s, begin_s) : bisect_right(self.times_s, end_s)]

    def label(self, name: str) -> str:
        """Return a label of the metric, or else of the resource; empty without one."""
        return self.metric_labels.get(name) or self.resource_labels.get(name, "")


class Points:
    """All series."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], dict[tuple[Labels, Labels], Series]] = {}

    def add(
        self,
        metric: str,
        resource: str,
        resource_labels: Mapping[str, str],
        metric_labels: Mapping[str, str],
        at_s: float,
        value: float,
    ) -> None:
        """Add a point, not older than the newest of its series."""
        labels = frozenset(resource_labels.items()), frozenset(metric_labels.items())
        beside = self._series.setdefault((metric, resource), {})
        if labels not in beside:
            beside[labels] = Series(metric, resource, dict(resource_labels), dict(metric_labels))
        series = beside[labels]
        series.times_s.append(max(at_s, series.times_s[-1] if series.times_s else at_s))
        series.values.append(value)
        old = bisect_right(series.times_s, at_s - _KEPT_S)
        del series.times_s[:old], series.values[:old]

    def of(self, metric: str, resource: str) -> Iterable[Series]:
        """Return the series of a metric on resources of a type."""
        return self._series.get((metric, resource), {}).values()
