"""A cloud for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cloud_front import CloudFront


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudFront]:
    front = CloudFront(tmp_path_factory.mktemp("cloud"))
    yield front
    front.close()
