"""Proofs of `make prove`."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

Lab = TypeVar("Lab", bound=Any)


@contextmanager
def opened(make: Callable[..., Lab], *arguments: Any) -> Iterator[Lab]:
    """Open a lab in a folder of its own; close it at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="proof-") as folder,
        closing(make(Path(folder), *arguments)) as lab,
    ):
        yield lab
