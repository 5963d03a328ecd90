from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.layers.tpu.startup import loader

from .lab import Host, running_lab
from .metadata import worker
from .storage import BUCKET, client_of, emulated_storage

ROOT = Path(__file__).resolve().parents[5]


@pytest.fixture(scope="session")
def bare_blobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """Return a published bundle without packages: its id, and the objects that publishing made."""
    with emulated_storage(tmp_path_factory.mktemp("publish")) as url:
        done = subprocess.run(
            [sys.executable, "-m", "cli", "publish", "lab", "--lock", "bare", "--bucket", BUCKET, "--json"],
            cwd=ROOT, env=os.environ | {"STORAGE_EMULATOR_HOST": url},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        objects = {blob.name: blob.download_as_bytes() for blob in client_of(url).list_blobs(BUCKET)}
    return json.loads(done.stdout)["bundle"], objects


@pytest.fixture
def gcs(tmp_path: Path) -> Iterator[str]:
    with emulated_storage(tmp_path) as url:
        yield url


@pytest.fixture
def published(gcs: str, bare_blobs: tuple[str, dict[str, bytes]]) -> str:
    """Return the bundle in this test's own storage server: its id."""
    bundle, objects = bare_blobs
    bucket = client_of(gcs).bucket(BUCKET)
    for name, content in objects.items():
        bucket.blob(name).upload_from_string(content)
    return bundle


@pytest.fixture(scope="session")
def data_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an ext4 image with one file."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "content").mkdir()
    (folder / "content" / "tokens.bin").write_bytes(b"\x01\x02" * 4096)
    image = folder / "disk.img"
    subprocess.run(
        ["mkfs.ext4", "-q", "-d", str(folder / "content"), str(image), "8M"], check=True, capture_output=True
    )
    return image


@pytest.fixture
def make_host(tmp_path: Path, gcs: str, published: str) -> Iterator[Callable[..., Host]]:
    """Return a maker of hosts with given attributes; their power is cut at the end."""
    hosts: list[Host] = []
    with running_lab(tmp_path, worker(BUCKET, published), gcs) as lab:

        def make(data_disk: Path | None = None, **attributes: str | None) -> Host:
            for key, value in attributes.items():
                lab.metadata.set(key.replace("_", "-"), value)
            hosts.append(Host(lab, loader(), data_disk))
            return hosts[-1]

        yield make
        for host in hosts:
            host.cut_power()
