"""Pictures by matplotlib as SVG, to stand in a page or alone. The import takes half a second: defer it.

Importing this module sets matplotlib's style.
"""

from __future__ import annotations

import io
import re

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from views.page import COLOURS

INK, FAINT, GRID, CARD = "#1d2733", "#5d6975", "#e4e8ec", "#ffffff"
RUN, BAR, FILL, BUSY, BAD, WARN = "#17406d", "#4a7fb5", "#9ec5e8", "#d9e4ee", "#c22f36", "#a8620a"
_PROPERTIES = {
    INK: "ink", FAINT: "faint", GRID: "line", CARD: "card", RUN: "run", BAR: "bar", FILL: "fill",
    BUSY: "busy", BAD: "bad", WARN: "warn",
}  # fmt: skip

matplotlib.use("svg")
matplotlib.rcParams.update({
    "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": FAINT, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "xtick.color": FAINT, "ytick.color": FAINT, "grid.color": GRID, "legend.frameon": False,
    "legend.fontsize": 8.5, "svg.fonttype": "none", "svg.hashsalt": "views",
})  # fmt: skip


def svg(figure: Figure, title: str) -> Markup:
    """Return a picture for a page, in the page's colours; the same for the same figure."""
    buffer = io.StringIO()
    undated = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=undated)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(">", f' role="img" aria-label="{escape(title)}">', 1)
    for colour, name in _PROPERTIES.items():
        text = text.replace(f": {colour}", f": var(--{name}, {colour})")
    # Ids must not meet those of another figure.
    prefix = re.sub(r"[^a-z]+", "-", title.lower())[:24]
    return Markup(re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text))


def alone(picture: str) -> str:
    """Return a picture of `svg` as a file, for light and dark."""
    head, _, body = picture.partition(">")
    return f"{head}><style>{COLOURS}svg {{ background: var(--card) }}</style>{body}"
