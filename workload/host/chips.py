"""Utilisation of this host's chips; empty where there is no TPU.

https://cloud.google.com/tpu/docs/tpu-monitoring-library: a metric's data is a list of numbers as text, one a
chip or core. Never tried on a TPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

_DUTY_CYCLE, _USED, _TOTAL = "duty_cycle_pct", "hbm_capacity_usage", "hbm_capacity_total"


def readings() -> dict[str, float]:
    """Return `duty_cycle_percent` and `hbm_percent`, means over this host's chips, where readable."""
    try:
        metric = importlib.import_module("libtpu.sdk").tpumonitoring.get_metric
    except (ImportError, AttributeError):
        return {}
    percentages: dict[str, float] = {}
    duty, used, total = (_numbers(metric, name) for name in (_DUTY_CYCLE, _USED, _TOTAL))
    if duty:
        percentages["duty_cycle_percent"] = round(sum(duty) / len(duty), 2)
    if used and sum(total) > 0:
        percentages["hbm_percent"] = round(100 * sum(used) / sum(total), 2)
    return percentages


def _numbers(metric: Callable[[str], object], name: str) -> list[float]:
    """Return a metric's values; empty if libtpu lacks it, or while no program runs."""
    try:
        data: Sequence[object] = metric(name).data()  # type: ignore[attr-defined]
        return [float(str(value)) for value in data]
    except Exception:  # libtpu documents no errors, and a heartbeat must not end with one
        return []
