"""Token files from real text, and a bucket on loopback."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front
from tests.workload.extracting import ARCH, CONFIG, extract, make_stream, save_weights
from workload.data import stream as streams
from workload.data.prepare import prepare
from workload.runs.store import FolderStore, Store, open_store

# What a host or a developer has set must not steer a test.
STEERING = (
    *("CHECKPOINT_BUCKET", "CHECKPOINT_DIR", "COORDINATOR_ADDRESS", "DATA_DIR", "GCE_METADATA_HOST"),
    *("STEPS_BUCKET", "STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "TPU_NAME", "WORKER_COUNT"),
    *("WORKER_ID", "XLA_FLAGS"),
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


@pytest.fixture(scope="session")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an extraction of stream 3: sixty documents, some shards."""
    root = tmp_path_factory.mktemp("extracted")
    (root / "stream_003.safetensors").write_bytes(make_stream([40 + n % 80 for n in range(60)]))
    stream = streams.read(str(root / "stream_003.safetensors"))
    extract(CONFIG, stream, save_weights(root / "weights", ARCH), FolderStore(root / "run"))
    return root / "run"


@pytest.fixture
def training(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of `workload train` on a machine that is no host."""
    monkeypatch.setenv("DATA_DIR", str(tokens))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")


def free_port() -> int:
    """A port for a server that begins later: below those that the kernel gives to connections meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulated Cloud Storage that holds the bucket `bucket`."""
    front = Front(tmp_path_factory.mktemp("cloud"))
    assert front.request("POST", "b", {"name": "bucket"}, project=PROJECT).status == 200
    yield front.url
    front.close()


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each kind of store, one after the other, empty."""
    if request.param == "folder":
        return open_store(str(tmp_path / "run"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("storage_url"))
    return open_store(f"gs://bucket/{tmp_path.name}/run")
