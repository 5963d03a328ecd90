from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from infra.publish import pack, wheels
from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Bucket]:
    """An empty bucket on a storage server of this test, which `storage.Client()` finds."""
    front = Front(tmp_path / "cloud")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.url)
    client = storage.Client(project=PROJECT, credentials=AnonymousCredentials())
    yield client.create_bucket("test-checkpoints")
    front.close()


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """Archive of the running Python, and the libraries that a host must have itself."""
    archive = tmp_path_factory.mktemp("pack") / "python.tar.gz"
    return archive, pack.pack_running(archive)


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workload's wheel, built of this tree."""
    return wheels.build_workload(tmp_path_factory.mktemp("workload"))
