"""The cloud as a process of its own: TLS, all doors, a clean end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import requests

from rehearsal import authority
from rehearsal.cloud.__main__ import main
from rehearsal.cloud.config import CloudConfigError, address, parse
from rehearsal.cloud.control import Control
from rehearsal.cloud.core.world import NO_LAGS
from tests.limits import HANG_S

REFRESH_TOKEN, OWNER, PROJECT = "1//secret", "owner@example.com", "wire-test"
ROOT = Path(__file__).parents[3]


def document(folder: Path, port: int, **more: Any) -> dict[str, Any]:
    tls = authority.issue(folder / "tls", ["*.googleapis.com"], ["127.0.0.1"])
    return {
        "project": PROJECT,
        "directory": str(folder / "cloud"),
        "control": str(folder / "control.sock"),
        "owner": OWNER,
        "refresh_token": REFRESH_TOKEN,
        "front_door": f"127.0.0.1:{port}",
        "metadata": "",
        "certificate": str(tls.certificate),
        "key": str(tls.key),
        "clock_rate": 1000,
        "lags": asdict(NO_LAGS),
        **more,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    port, config = free_port(), tmp_path / "cloud.json"
    config.write_text(json.dumps(document(tmp_path, port)))
    command = [sys.executable, "-m", "rehearsal.cloud", "--config", str(config)]
    started = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + HANG_S
    while not (tmp_path / "control.sock").exists() and started.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    yield started, port, tmp_path
    if started.poll() is None:
        started.kill()
        started.wait()


def test_it_serves_tls_and_ends_without_a_trace(process: tuple[subprocess.Popen[str], int, Path]) -> None:
    started, port, folder = process
    control = Control(folder / "control.sock")
    assert control.status()["nodes"] == []
    url = f"https://127.0.0.1:{port}"
    form = {"grant_type": "refresh_token", "refresh_token": REFRESH_TOKEN}
    bundle = str(folder / "tls" / "bundle.pem")
    token = requests.post(
        f"{url}/token", data=form, headers={"Host": "oauth2.googleapis.com"}, verify=bundle, timeout=HANG_S
    ).json()["access_token"]
    headers = {"Authorization": f"Bearer {token}", "Host": "storage.googleapis.com"}
    made = requests.post(
        f"{url}/storage/v1/b?project={PROJECT}",
        json={"name": "first-bucket", "location": "US-EAST5"},
        headers=headers,
        verify=bundle,
        timeout=HANG_S,
    )
    assert made.status_code == 200, made.text
    assert control.status()["requests"]["methods"]["storage.buckets.insert"]["validated"] == 1
    started.send_signal(signal.SIGTERM)
    assert started.wait(HANG_S) == 0
    assert not (folder / "control.sock").exists()
    assert len((folder / "cloud" / "requests.jsonl").read_text().splitlines()) == 2


def test_a_wrong_configuration_ends_the_process_with_its_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "cloud.json"
    config.write_text(json.dumps({"project": "p"}))
    monkeypatch.setattr(sys, "argv", ["cloud", "--config", str(config)])
    assert main() == 1
    error = capsys.readouterr().err
    assert error.startswith("rehearsal.cloud: 4 problems in the cloud's configuration:\n")
    assert "  directory = nothing: required\n" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zone": "us-east5-b"}, 'zone = "us-east5-b": unknown key\n    fix: did you mean zones?'),
        ({"clock_rate": "fast"}, 'clock_rate = "fast": must be a number'),
        ({"zones": 5.5}, "zones = 5.5: must be a list"),
        ({"seed": 1.5}, "seed = 1.5: must be a whole number"),
        ({"directory": 5}, "directory = 5: must be a path"),
    ],
)
def test_configurations_are_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CloudConfigError) as caught:
        parse(document(tmp_path, 1) | change)
    assert message in str(caught.value)


def test_addresses_are_checked() -> None:
    assert address("199.36.153.8:443") == ("199.36.153.8", 443)
    with pytest.raises(CloudConfigError, match="must be HOST:PORT"):
        address("443")
