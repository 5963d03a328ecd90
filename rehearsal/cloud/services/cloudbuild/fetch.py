"""Fetch the source of a build, as the build's account, which builder.py runs it as.

python -m rehearsal.cloud.services.cloudbuild.fetch SOURCE WORKSPACE
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from urllib.parse import quote

import google.auth
from google.auth.transport.requests import AuthorizedSession

_STORAGE = "https://storage.googleapis.com"


def main() -> int:
    """Unpack the source, a `storageSource` in JSON, into the workspace; return the exit status."""
    source, workspace = json.loads(sys.argv[1]), sys.argv[2]
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    url = f"{_STORAGE}/storage/v1/b/{source['bucket']}/o/{quote(source['object'], safe='')}?alt=media"
    answer = session.get(url + (f"&generation={source['generation']}" if "generation" in source else ""))
    if not answer.ok:
        print(f"could not fetch gs://{source['bucket']}/{source['object']}: {answer.text}")
        return 1
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        tar.extractall(workspace, filter="data")
    print(f"fetched gs://{source['bucket']}/{source['object']}, {len(answer.content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
