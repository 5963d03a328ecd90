"""The Spark service's work before a batch starts: fetch its files, as the batch's account.

python -m rehearsal.cloud.services.dataproc.worker JSON FOLDER

Run by runner.py.

JSON: `files` go into the folder under their names, `archives` into folders with theirs, or with that after #.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from urllib.parse import quote

import google.auth
from google.auth.transport.requests import AuthorizedSession

_STORAGE = "https://storage.googleapis.com/storage/v1/b"


def main() -> int:
    """Fetch all; the exit status."""
    what, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    for uri in what["files"]:
        content = _fetch(session, uri)
        if content is None:
            return 1
        (folder / uri.rpartition("/")[2]).write_bytes(content)
    for uri in what["archives"]:
        plain, _, name = uri.partition("#")
        content = _fetch(session, plain)
        if content is None:
            return 1
        _unpack(content, plain, folder / (name or plain.rpartition("/")[2]))
    return 0


def _fetch(session: AuthorizedSession, uri: str) -> bytes | None:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    answer = session.get(f"{_STORAGE}/{bucket}/o/{quote(name, safe='')}?alt=media")
    if not answer.ok:
        print(f"could not fetch {uri}: {answer.status_code} {answer.text}", flush=True)
        return None
    return bytes(answer.content)


def _unpack(content: bytes, uri: str, folder: Path) -> None:
    if uri.endswith((".zip", ".jar")):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(folder)
    else:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(folder, filter="data")


if __name__ == "__main__":
    sys.exit(main())
