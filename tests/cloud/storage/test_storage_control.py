"""gcsfs as it comes, which asks over gRPC what kind of bucket it has, on the port of the JSON API."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from storage_front import OWNER, Front

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
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_gcsfs_learns_the_layout_and_goes_on_over_http(
    front: Front, tls_url: str, bucket: str, tmp_path: Path
) -> None:
    done = run(tls_url, bucket, front.token(OWNER), tmp_path / "ca.pem")
    # The owner may not list objects by his basic role: a bucket's legacy roles let him.
    assert done.stdout.splitlines() == ["NON_HIERARCHICAL", f"text ['{bucket}/dir/a']"], done.stderr


def test_a_bucket_that_is_not_there_and_a_stranger(
    front: Front, tls_url: str, bucket: str, tmp_path: Path
) -> None:
    for name, principal in (("none-such", OWNER), (bucket, "stranger@example.com")):
        done = run(tls_url, name, front.token(principal), tmp_path / "ca.pem")
        assert done.stdout.splitlines()[0] == "UNKNOWN", done.stderr
        assert done.returncode == 1
