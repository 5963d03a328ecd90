"""gcsfs as it comes, which asks over gRPC what kind of bucket it has, on the port of the JSON API."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.cloud.storage_control_v2.types import GetStorageLayoutRequest, StorageLayout
from storage_front import OWNER, Front

from tests.limits import HANG_S

METHOD = "google.storage.control.v2.StorageControl/GetStorageLayout"
PROGRAM = """
    import sys
    import gcsfs
    from google.oauth2.credentials import Credentials

    url, bucket, token = sys.argv[1:]
    files = gcsfs.GCSFileSystem(project="wire-test", token=Credentials(token), endpoint_url=url)
    assert type(files).__name__ == "ExtendedGcsFileSystem"
    print(files._sync_lookup_bucket_type(bucket).name)
    files.pipe(f"{bucket}/dir/a", b"text")
    print(files.cat(f"{bucket}/dir/a").decode(), files.ls(f"{bucket}/dir"))
"""


def run(tls_url: str, bucket: str, token: str, ca: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "SSL_CERT_FILE": str(ca),
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca),
        "GRPC_VERBOSITY": "NONE",
        # The trainer switches this look-up off for its own process, and so for tests that import it.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "true",
    }
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), tls_url, bucket, token]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)


def test_gcsfs_learns_the_layout_and_goes_on_over_http(
    front: Front, tls_url: str, bucket: str, tmp_path: Path
) -> None:
    done = run(tls_url, bucket, front.token_of(OWNER), tmp_path / "ca.pem")
    # The owner may not list objects by his basic role: a bucket's legacy roles let him.
    assert done.stdout.splitlines() == ["NON_HIERARCHICAL", f"text ['{bucket}/dir/a']"], done.stderr


def test_a_bucket_that_is_not_there_and_a_stranger(
    front: Front, tls_url: str, bucket: str, tmp_path: Path
) -> None:
    for name, principal in (("none-such", OWNER), (bucket, "stranger@example.com")):
        done = run(tls_url, name, front.token_of(principal), tmp_path / "ca.pem")
        assert done.stdout.splitlines()[0] == "UNKNOWN", done.stderr
        assert done.returncode == 1


def ask(front: Front, bucket: str, token: str, method: str = METHOD) -> str:
    """The layout's location, or the name of the code that the call ended with."""
    with grpc.insecure_channel(f"unix:{front.service.grpc_socket}") as channel:
        call = channel.unary_unary(
            f"/{method}",
            request_serializer=GetStorageLayoutRequest.serialize,
            response_deserializer=StorageLayout.deserialize,
        )
        request = GetStorageLayoutRequest(name=f"projects/_/buckets/{bucket}/storageLayout")
        try:
            return str(
                call(request, metadata=[("authorization", f"Bearer {token}")], timeout=HANG_S).location
            )
        except grpc.RpcError as error:
            return str(error.code().name)


@pytest.mark.parametrize(
    ("what", "status", "code"),
    [
        ({"status": 503}, 503, "UNAVAILABLE"),
        ({"status": 403}, 403, "PERMISSION_DENIED"),
        ({"reset": True}, 0, "UNAVAILABLE"),
        ({"lost_answer": True}, 0, "UNAVAILABLE"),
        ({"truncated": True}, 0, "UNAVAILABLE"),
    ],
)
def test_a_fault_strikes_a_grpc_call_and_is_logged(
    front: Front, bucket: str, what: dict[str, Any], status: int, code: str
) -> None:
    rule = {"match": {"method": METHOD, "principal": OWNER}, "times": 1, "what": what}
    rule_id, since = front.faults.add(rule), front.requests.since(0)["next"]
    token = front.token_of(OWNER)
    assert [ask(front, bucket, token) for _ in range(2)] == [code, "US"]
    assert front.faults.lift(rule_id) == 1
    log = front.requests.since(since)["requests"]
    entries = [(item["method_id"], item["principal"], item["reason"], item["status"]) for item in log]
    assert entries == [(METHOD, OWNER, rule_id, status), (METHOD, OWNER, "", 200)]


def test_grpc_calls_are_judged_as_at_the_front_door(front: Front, bucket: str) -> None:
    other = METHOD.replace("GetStorageLayout", "GetAnywhereCache")
    assert ask(front, bucket, "ya29.forged") == "UNAUTHENTICATED"
    assert ask(front, bucket, front.token_of("stranger@example.com")) == "PERMISSION_DENIED"
    assert ask(front, "none-such", front.token_of(OWNER)) == "NOT_FOUND"
    assert ask(front, bucket, front.token_of(OWNER), other) == "UNIMPLEMENTED"
    assert front.requests.counts()["methods"][other] == {"validated": 0, "refused": 1}
