"""The default way to a host, by the real gcloud: it reads, as the documented roles allow, and no more."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.settings.schema import LOGIN, SSH
from tests.limits import HANG_S
from tests.served import Received, Reply, serving

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud isn't installed")
NODE = "/v2alpha1/projects/my-project/locations/us-east5-b/nodes/train"
ANSWERS: dict[str, Any] = {
    NODE: {
        "name": NODE.removeprefix("/v2alpha1/"),
        "id": "42",
        "state": "READY",
        "apiVersion": "V2_ALPHA1",
        "networkEndpoints": [{"ipAddress": "10.64.0.2"}, {"ipAddress": "10.64.0.3"}],
        "metadata": {"enable-oslogin": "TRUE"},
    },
    f"{NODE}:getGuestAttributes": {
        "guestAttributes": [{"queryValue": {"items": [{"key": "hostname", "value": "t1v-n-1234-w-0"}]}}]
    },
    "/compute/v1/projects/my-project": {"name": "my-project"},
    "/v1/users/ada@example.com/loginProfile": {"posixAccounts": [{"username": "ada_example_com"}]},
}


@pytest.fixture
def google() -> Iterator[tuple[str, list[str]]]:
    """Yield a URL that answers as the APIs of TPU, Compute Engine and OS Login, and what was asked."""
    requests: list[str] = []

    def answer(request: Received) -> Reply:
        requests.append(f"{request.method} {request.path}")
        body = ANSWERS.get(request.path, {"error": {"message": "unknown"}})
        return Reply(200 if request.path in ANSWERS else 404, body, [("Content-Type", "application/json")])

    with serving(answer) as address:
        yield f"http://{address}/", requests


def test_it_reads_and_writes_no_metadata(tmp_path: Path, google: tuple[str, list[str]]) -> None:
    url, requests = google
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "google_compute_engine.pub").write_text("ssh-ed25519 AAAA ada\n")
    (tmp_path / "token").write_text("token")
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n')
    (tmp_path / "ssh").chmod(0o755)
    command = SSH.format(login=f"$({LOGIN})", node="train", project="my-project", zone="us-east5-b")
    done = subprocess.run(
        ["sh", "-c", f"{command} --worker=0 --command='hostname -f'"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
            "CLOUDSDK_CORE_ACCOUNT": "ada@example.com",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN": url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{url}compute/v1/",
        },
    )
    assert done.returncode == 0, done.stderr
    # tpu.nodes.get (twice), compute.projects.get, and one's own profile.
    assert sorted(requests) == [
        "GET /compute/v1/projects/my-project",
        "GET /v1/users/ada@example.com/loginProfile",
        f"GET {NODE}",
        f"POST {NODE}:getGuestAttributes",
    ]
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[-4:] == ["ada_example_com@10.64.0.2", "--", "hostname", "-f"]
    assert "-i~/.ssh/google_compute_engine" in arguments
    (tunnel,) = (word for word in arguments if word.startswith("ProxyCommand "))
    assert "start-iap-tunnel 't1v-n-1234-w-0' '%p' --listen-on-stdin --project=my-project" in tunnel
