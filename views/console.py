"""Rich's console for guarded terminals: styles of our own pass, control characters in texts don't."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from views.terminal import clean, unguarded


class Terminal(Console):
    """A console that cleans every text; a cell of a table is cleaned before, so that its width counts."""

    def __init__(self, *, stderr: bool = False, **more: Any):
        """Open standard output, or standard error; `more`: arguments of rich's console."""
        more.setdefault("file", unguarded(sys.stderr if stderr else sys.stdout))
        super().__init__(stderr=stderr, **more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with clean texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))
