"""Token files from real text, and a bucket on loopback."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from workload.data.prepare import prepare
from workload.store import Store, open_store

# What a host or a developer has set must not steer a test.
STEERING = (
    "CHECKPOINT_BUCKET",
    "CHECKPOINT_DIR",
    "COORDINATOR_ADDRESS",
    "DATA_DIR",
    "GCE_METADATA_HOST",
    "STEPS_BUCKET",
    "STORAGE_EMULATOR_HOST",
    "TENSORSTORE_GCS_HTTP_URL",
    "TPU_NAME",
    "WORKER_COUNT",
    "WORKER_ID",
    "XLA_FLAGS",
)


@pytest.fixture(autouse=True)
def _no_steering(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STEERING:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files of Python's own sources, about a megabyte of real text."""
    library = Path(os.__file__).parent
    out = tmp_path_factory.mktemp("data") / "tokens"
    prepare([library / "email", library / "asyncio"], out)
    return out


def free_port() -> int:
    """A port for a server that begins later: below those that the kernel gives to connections meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def storage_url() -> Iterator[str]:
    """The address of a fake-gcs-server that holds the bucket `bucket`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    beside = Path(sys.executable).with_name("fake-gcs-server")
    program = str(beside) if beside.exists() else shutil.which("fake-gcs-server")
    assert program, "fake-gcs-server is not installed; `make tools` builds it"
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    server = subprocess.Popen(
        [program, *options, "-external-url", url, "-log-level", "error"], stdout=subprocess.DEVNULL
    )
    try:
        _wait_until_up(f"{url}/storage/v1/b", server)
        requests.post(f"{url}/storage/v1/b?project=p", json={"name": "bucket"}, timeout=10).raise_for_status()
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each kind of store, one after the other, empty."""
    if request.param == "folder":
        return open_store(str(tmp_path / "run"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("storage_url"))
    return open_store(f"gs://bucket/{tmp_path.name}/run")


def _wait_until_up(url: str, server: "subprocess.Popen[bytes]") -> None:
    give_up = time.monotonic() + 30
    while True:
        assert server.poll() is None, "fake-gcs-server ended"
        try:
            requests.get(url, timeout=5)
        except requests.ConnectionError:
            assert time.monotonic() < give_up, "fake-gcs-server doesn't answer"
            time.sleep(0.05)
        else:
            return
