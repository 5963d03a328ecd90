"""Copies from Cloud Storage into a sandbox's folder, as the sandbox's account.

python -m rehearsal.cloud.services.transfer JSON FOLDER

JSON: `files` are fetched into the folder under their names, `archives` into folders with theirs, or with that
after #; of a `generation` if given.
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

_STORAGE = "https://storage.googleapis.com"


def main() -> int:
    """Make all copies; return the exit status."""
    what, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    try:
        for uri in what.get("files", ()):
            (folder / uri.rpartition("/")[2]).write_bytes(_fetch(session, uri))
        for uri in what.get("archives", ()):
            plain, _, name = uri.partition("#")
            content = _fetch(session, plain, what.get("generation", ""))
            _unpack(content, plain, folder / (name or plain.rpartition("/")[2]))
    except OSError as error:
        print(error, flush=True)
        return 1
    return 0


def _fetch(session: AuthorizedSession, uri: str, generation: str = "") -> bytes:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    url = f"{_STORAGE}/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"
    answer = session.get(url + (f"&generation={generation}" if generation else ""))
    if not answer.ok:
        raise OSError(f"could not fetch {uri}: {answer.status_code} {answer.text}")
    print(f"fetched {uri}, {len(answer.content)} bytes", flush=True)
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
