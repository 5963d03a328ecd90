"""Line charts as SVG without a plotting library: a live page may have hundreds."""

import math
from collections.abc import Sequence

from markupsafe import Markup

Line = Sequence[tuple[float, float]]
"""Points of time and value in the order of time; NaN makes a gap."""


def extent(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the lowest value, 0 or below, and the highest, which is above it."""
    values = [value for line in lines for _, value in line if not math.isnan(value)]
    low, high = min([0.0, *values]), max([0.0, *values])
    return low, high if high > low else low + 1


def short(value: float) -> str:
    """Format a number with four digits or more: 5,200, 22.45."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def chart(lines: Sequence[Line], label: str) -> Markup:
    """Draw lines over a common time from `extent`'s lowest to its highest value; CSS gives the size."""
    low, high = extent(lines)
    times = [at for line in lines for at, _ in line] or [0.0]
    begin, length = min(times), max(times) - min(times) or 1.0
    paths = []
    for line in lines:
        path, pen = "", "M"
        for at, value in line:
            if math.isnan(value):
                pen = "M"
                continue
            x, y = 100 * (at - begin) / length, 98 - 96 * (value - low) / (high - low)
            # Without the line of no length, a point between gaps would be invisible.
            path += f"{pen}{x:.1f} {y:.1f}{'h0' * (pen == 'M')}"
            pen = "L"
        paths.append(f'<path d="{path}"/>')
    head = Markup('<svg class="chart" viewBox="0 0 100 100" preserveAspectRatio="none" role="img"')
    return Markup('{} aria-label="{}">{}</svg>').format(head, label, Markup("".join(paths)))
