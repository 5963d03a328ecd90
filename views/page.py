"""HTML pages that need no network, no script and no other file, from jinja2 templates.

A template extends `base.html`, which has the look, and may import `parts.html`. Values are escaped.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_FOLDER = Path(__file__).parent
COLOURS = (_FOLDER / "colours.css").read_text("utf-8")
"""Custom properties of the look, for light and dark; for pictures that stand alone."""


def render(template: Path, values: Mapping[str, Any]) -> str:
    """Fill a template. Raises jinja2.UndefinedError for a value that isn't given."""
    return _environment(template.parent).get_template(template.name).render(values)


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _with_code
    return environment


def _with_code(text: str) -> Markup:
    """Escape a text and mark the parts between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
