from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Bucket]:
    """An empty bucket on a storage server of this test, which `storage.Client()` finds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = shutil.which("fake-gcs-server", path=str(Path(sys.executable).parent))
    assert program, "fake-gcs-server is missing: make setup"
    url = f"http://127.0.0.1:{port}"
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    command += ["-external-url", url, "-public-host", f"127.0.0.1:{port}", "-log-level", "error"]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    server = subprocess.Popen(command)
    try:
        client = storage.Client(project="test", credentials=AnonymousCredentials())
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                yield client.create_bucket("test-checkpoints")
                return
            time.sleep(0.05)
        pytest.fail("fake-gcs-server doesn't answer")
    finally:
        server.terminate()
        server.wait()
