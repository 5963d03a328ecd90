"""A cloud whose services can run processes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxed_front import Boxed


@pytest.fixture(scope="module")
def boxed() -> Iterator[Boxed]:
    with tempfile.TemporaryDirectory(prefix="box-") as folder:
        front = Boxed(Path(folder), spark_python=sys.executable)
        front.bucket("raw")
        yield front
        front.close()
