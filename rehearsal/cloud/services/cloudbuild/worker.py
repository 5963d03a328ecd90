"""Cloud Build's work around the steps: fetch the source, upload the artifacts.

python -m rehearsal.cloud.services.cloudbuild.worker JSON WORKSPACE

Run by builder.py as the build's account.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from urllib.parse import quote

import google.auth
from google.auth.transport.requests import AuthorizedSession

_STORAGE = "https://storage.googleapis.com"


def main() -> int:
    """Do one of the two; the exit status."""
    what, workspace = json.loads(sys.argv[1]), Path(sys.argv[2])
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    if source := what.get("fetch"):
        return _fetch(session, source, workspace)
    return _push(session, what["push"], workspace)


def _fetch(session: AuthorizedSession, source: dict[str, str], workspace: Path) -> int:
    url = f"{_STORAGE}/storage/v1/b/{source['bucket']}/o/{quote(source['object'], safe='')}?alt=media"
    answer = session.get(url + (f"&generation={source['generation']}" if "generation" in source else ""))
    if not answer.ok:
        print(f"could not fetch gs://{source['bucket']}/{source['object']}: {answer.text}")
        return 1
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        tar.extractall(workspace, filter="data")
    print(f"fetched gs://{source['bucket']}/{source['object']}, {len(answer.content)} bytes")
    return 0


def _push(session: AuthorizedSession, objects: dict[str, object], workspace: Path) -> int:
    bucket, _, prefix = str(objects["location"]).removeprefix("gs://").partition("/")
    paths = objects["paths"]
    assert isinstance(paths, list)
    matches = [path for pattern in paths for path in sorted(workspace.glob(pattern))]
    if not matches:
        print(f"no artifacts: nothing is {', '.join(paths)}")
        return 1
    for path in matches:
        name = quote(f"{prefix}{path.name}", safe="")
        url = f"{_STORAGE}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        answer = session.post(url, data=path.read_bytes())
        if not answer.ok:
            print(f"could not write gs://{bucket}/{prefix}{path.name}: {answer.text}")
            return 1
        print(f"wrote gs://{bucket}/{prefix}{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
