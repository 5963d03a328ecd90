"""Our stand-in for Google's plug-in in builds: a token for kubectl and for Pulumi's provider."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import Received, Reply, serving

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / ".venv" / "libexec" / "gke-gcloud-auth-plugin"


@pytest.fixture(name="metadata")
def _metadata() -> Iterator[tuple[str, list[str]]]:
    """A metadata server as builds have one: its address, and the scopes of the last token."""
    scopes: list[str] = []

    def answer(request: Received) -> Reply:
        body = {"access_token": "t-1", "expires_in": 3600, "token_type": "Bearer"}
        if request.target.endswith("/?recursive=true"):
            body = {"email": "tpu-builds@my-project.iam.gserviceaccount.com", "scopes": []}
        else:
            scopes[:] = request.query.get("scopes", [""])[0].split(",")
        return Reply(200, body, [("Metadata-Flavor", "Google"), ("Content-Type", "application/json")])

    with serving(answer) as address:
        yield address, scopes


def run(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As client-go starts it."""
    line = [str(PLUGIN), "--use_application_default_credentials"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, cwd=home)


def test_a_build_gets_the_token_of_its_account(metadata: tuple[str, list[str]], tmp_path: Path) -> None:
    address, scopes = metadata
    done = run(tmp_path, GCE_METADATA_HOST=address, GCE_METADATA_IP=address)
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout)
    assert parsed["apiVersion"] == "client.authentication.k8s.io/v1beta1"
    assert parsed["kind"] == "ExecCredential"
    assert parsed["status"]["token"] == "t-1"
    assert parsed["status"]["expirationTimestamp"].endswith("Z")
    requested = {scope.rpartition("/")[2] for scope in scopes}
    assert requested == {"cloud-platform", "userinfo.email"}, "else a cluster knows the account by its number"


def test_who_isnt_logged_in_gets_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "none.json"))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gke-gcloud-auth-plugin: ")
