"""A cloud for all tests of the services."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from services_front import Services


@pytest.fixture
def services(started: Services) -> Iterator[Services]:
    """The cloud, which makes no mistakes in a test."""
    yield started
    assert started.mistakes() == []


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    getaddrinfo = socket.getaddrinfo

    def to_loopback(host: Any, *rest: Any, **more: Any) -> Any:
        return getaddrinfo("127.0.0.1" if str(host).endswith(".googleapis.com") else host, *rest, **more)

    with closing(Services(tmp_path_factory.mktemp("services"))) as result:
        result.furnish()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", to_loopback)
            yield result
