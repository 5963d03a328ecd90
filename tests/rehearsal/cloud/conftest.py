"""A cloud for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cloud_front import CloudFront


@pytest.fixture(scope="module")
def cloud() -> Iterator[CloudFront]:
    front = CloudFront()
    yield front
    front.close()
