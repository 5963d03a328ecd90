"""Our stand-in for Google's plug-in in builds: a token for kubectl and for Pulumi's provider."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / ".venv" / "libexec" / "gke-gcloud-auth-plugin"


@pytest.fixture(name="metadata")
def _metadata() -> Iterator[tuple[str, list[str]]]:
    """A metadata server as builds have one: its address, and the scopes of the last token."""
    scopes: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = {"access_token": "t-1", "expires_in": 3600, "token_type": "Bearer"}
            if self.path.endswith("/?recursive=true"):
                answer = {"email": "tpu-builds@my-project.iam.gserviceaccount.com", "scopes": []}
            else:
                scopes[:] = parse_qs(urlsplit(self.path).query).get("scopes", [""])[0].split(",")
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", scopes
    server.shutdown()


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
