"""What this host's chips say of themselves. Only a TPU does: elsewhere there is nothing to read.

https://cloud.google.com/tpu/docs/tpu-monitoring-library: a metric's data is a list of numbers as text, one a
chip or core. Nothing of it was tried on a TPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

_DUTY_CYCLE, _USED, _TOTAL = "duty_cycle_pct", "hbm_capacity_usage", "hbm_capacity_total"


def readings() -> dict[str, float]:
    """`duty_cycle_percent` and `hbm_percent`, means of this host's chips; without what can't be read."""
    try:
        metric = importlib.import_module("libtpu.sdk").tpumonitoring.get_metric
    except (ImportError, AttributeError):
        return {}
    found: dict[str, float] = {}
    duty, used, total = (_numbers(metric, name) for name in (_DUTY_CYCLE, _USED, _TOTAL))
    if duty:
        found["duty_cycle_percent"] = round(sum(duty) / len(duty), 2)
    if used and sum(total) > 0:
        found["hbm_percent"] = round(100 * sum(used) / sum(total), 2)
    return found


def _numbers(metric: Callable[[str], object], name: str) -> list[float]:
    """Empty where this version of libtpu, or a moment without a running program, has none."""
    try:
        data: Sequence[object] = metric(name).data()  # type: ignore[attr-defined]
        return [float(str(one)) for one in data]
    except Exception:  # libtpu documents no errors, and a heartbeat must not end with one
        return []
