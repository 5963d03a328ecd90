"""A front door for all of these tests, a bucket of its own for each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from storage_front import PROJECT, Front, unhurried

_numbers = itertools.count()


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = Front(tmp_path_factory.mktemp("storage"))
    yield front
    front.close()


@pytest.fixture
def limited(front: Front) -> Iterator[None]:
    """Mutations are limited as at Google: for clients that back off."""
    front.limit.now = time.monotonic
    yield
    front.limit.now = unhurried


@pytest.fixture
def tls_url(front: Front, tmp_path: Path) -> Iterator[str]:
    with front.tls(tmp_path) as url:
        yield url


@pytest.fixture
def new_bucket(front: Front) -> Callable[..., str]:
    """Makes a bucket with these settings; without soft delete unless they say otherwise."""

    def make(**settings: Any) -> str:
        name = f"bucket-{next(_numbers)}"
        body = {"name": name, "softDeletePolicy": {"retentionDurationSeconds": "0"}, **settings}
        reply = front.request("POST", "b", body, project=PROJECT)
        assert reply.status == 200, reply.body
        return name

    return make


@pytest.fixture
def bucket(new_bucket: Callable[..., str]) -> str:
    return new_bucket()
