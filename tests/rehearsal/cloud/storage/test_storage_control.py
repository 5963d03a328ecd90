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

    url, bucket, owner, stranger = sys.argv[1:]

    def files(token):
        return gcsfs.GCSFileSystem(project="wire-test", token=Credentials(token), endpoint_url=url)

    for name, token in ((bucket, owner), ("none-such", owner), (bucket, stranger)):
        print(files(token)._sync_lookup_bucket_type(name).name)
    own = files(owner)
    own.pipe(f"{bucket}/dir/a", b"text")
    print(type(own).__name__, own.cat(f"{bucket}/dir/a").decode(), own.ls(f"{bucket}/dir"))
    try:
        files(stranger).pipe(f"{bucket}/dir/b", b"text")
    except OSError as error:
        print("storage.objects.create" in str(error))
"""


def test_gcsfs_learns_the_layout_and_goes_on_over_http(
    front: Front, tls_url: str, bucket: str, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "SSL_CERT_FILE": str(tmp_path / "ca.pem"),
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "ca.pem"),
        "GRPC_VERBOSITY": "NONE",
        # The trainer switches this look-up off for its own process, and so for tests that import it.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "true",
    }
    tokens = front.token_of(OWNER), front.token_of("stranger@example.com")
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), tls_url, bucket, *tokens]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    # The owner may not list objects by his basic role: a bucket's legacy roles let him.
    expected = ["NON_HIERARCHICAL", "UNKNOWN", "UNKNOWN", f"ExtendedGcsFileSystem text ['{bucket}/dir/a']"]
    assert done.stdout.splitlines() == [*expected, "True"], done.stderr


def layout(front: Front, bucket: str, token: str, method: str = METHOD) -> str:
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
    assert [layout(front, bucket, token) for _ in range(2)] == [code, "US"]
    assert front.faults.lift(rule_id) == 1
    log = front.requests.since(since)["requests"]
    entries = [(item["method_id"], item["principal"], item["reason"], item["status"]) for item in log]
    assert entries == [(METHOD, OWNER, rule_id, status), (METHOD, OWNER, "", 200)]


def test_grpc_calls_are_judged_as_at_the_front_door(front: Front, bucket: str) -> None:
    other = METHOD.replace("GetStorageLayout", "GetAnywhereCache")
    assert layout(front, bucket, "ya29.forged") == "UNAUTHENTICATED"
    assert layout(front, bucket, front.token_of("stranger@example.com")) == "PERMISSION_DENIED"
    assert layout(front, "none-such", front.token_of(OWNER)) == "NOT_FOUND"
    assert layout(front, bucket, front.token_of(OWNER), other) == "UNIMPLEMENTED"
    assert front.requests.counts()["methods"][other] == {"validated": 0, "refused": 1}
