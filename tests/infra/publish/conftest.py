from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Bucket]:
    """An empty bucket on a storage server of this test, which `storage.Client()` finds."""
    front = Front(tmp_path / "cloud")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.url)
    client = storage.Client(project=PROJECT, credentials=AnonymousCredentials())
    yield client.create_bucket("test-checkpoints")
    front.close()
