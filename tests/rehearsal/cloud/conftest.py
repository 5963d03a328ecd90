"""A cloud for the tests of one module, and a TPU lab for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cloud_front import CloudFront
from tpu_lab import Lab, open_lab


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudFront]:
    front = CloudFront(tmp_path_factory.mktemp("cloud"))
    yield front
    front.close()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(tmp_path) as opened:
        yield opened
