"""The small model that several measurements train, and what it reads."""

import os
from pathlib import Path

from workload.data.prepare import prepare

CONFIG = Path(__file__).with_name("small.toml")


def make_tokens(out: Path) -> None:
    """Token files of Python's own sources, about a megabyte of real text."""
    library = Path(os.__file__).parent
    prepare([library / "email", library / "asyncio"], out)
