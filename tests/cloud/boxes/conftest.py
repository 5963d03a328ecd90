"""A cloud whose services can run processes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxed_front import REGION, Boxed


@pytest.fixture(scope="module")
def boxed() -> Iterator[Boxed]:
    with tempfile.TemporaryDirectory(prefix="box-") as folder:
        front = Boxed(Path(folder), spark_python=sys.executable)
        front.ask(
            "POST", "storage.googleapis.com/storage/v1/b?project=boxed", {"name": "raw", "location": REGION}
        )
        yield front
        front.close()
