"""Start and follow a build of this checkout, as `gcloud builds submit` does."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.errors import CommandError
from infra.google.client import Client
from infra.layers.builds.names import SOURCES
from infra.layers.builds.render import PLANS
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

Build = dict[str, Any]

CLOUD_BUILD, LOGGING = "https://cloudbuild.googleapis.com/v1", "https://logging.googleapis.com/v2"
_UNFINISHED = ("PENDING", "QUEUED", "WORKING", "STATUS_UNKNOWN")
_EVERY_S = 2.0
_LOG_LINES = 40
_SKIPPED = ("__pycache__", "node_modules")


def start(
    settings: Settings, build: Mapping[str, Any], root: Path, client: Client, plans: Path | None
) -> str:
    """Upload the checkout, and a folder of plans; start a build of it, return its id.

    Raises:
        CommandError: a build of the environment hasn't ended.
        RequestError: Google refuses one of them.
    """
    bucket, request = str(settings[StorageSettings].state_bucket_name), str(uuid.uuid4())
    _require_ended(settings, client)
    name = f"{SOURCES}{request}.tgz"
    generation = client.upload(bucket, name, archive(root, plans), 0)
    source = {"storageSource": {"bucket": bucket, "object": name, "generation": str(generation)}}
    url = _builds(settings)
    body = {**build, "source": source, "tags": [*build["tags"], request]}

    def find() -> dict[str, Any] | None:
        builds = client.json("GET", url, {"filter": f'tags="{request}"'}).get("builds")
        return {"metadata": {"build": builds[0]}} if builds else None

    return str(client.make(url, body, find)["metadata"]["build"]["id"])


def _require_ended(settings: Settings, client: Client) -> None:
    query = {"filter": f'tags="tpu" AND tags="{settings.environment}"'}
    for build in client.items(_builds(settings), "builds", query):
        if build["status"] in _UNFINISHED:
            id_, place = build["id"], f"--project={settings.project}"
            fix = f"gcloud builds log {id_} {place} --stream, or gcloud builds cancel {id_} {place}"
            problem = f"a build of {settings.environment} is {build['status']} already: {id_}"
            raise CommandError(f"{problem}\n    fix: {fix}")


def _builds(settings: Settings) -> str:
    return f"{CLOUD_BUILD}/projects/{settings.project}/builds"


def follow(project: str, id_: str, client: Client, show: Callable[[str], None]) -> Build:
    """Wait for a build's end, show each step as it begins and ends, return the build. Raises RequestError."""
    seen: dict[str, str] = {}
    while True:
        build = client.json("GET", f"{CLOUD_BUILD}/projects/{project}/builds/{id_}")
        for step in build.get("steps") or ():
            state = step.get("status", "QUEUED")
            if state != "QUEUED" and seen.get(step["id"]) != state:
                seen[step["id"]] = state
                show(f"{step['id']}: {state}")
        if build["status"] not in _UNFINISHED:
            return build
        time.sleep(_EVERY_S)


def log(project: str, id_: str, client: Client) -> Iterator[str]:
    """Yield the last lines of a build's log, the oldest first. Raises RequestError."""
    body = {
        "resourceNames": [f"projects/{project}"],
        "filter": f'resource.type="build" AND resource.labels.build_id="{id_}"',
        "orderBy": "timestamp desc",
        "pageSize": _LOG_LINES,
    }
    entries = client.json("POST", f"{LOGGING}/entries:list", body=body).get("entries") or ()
    for entry in reversed(entries):
        yield str(entry.get("textPayload", ""))


def archive(root: Path, plans: Path | None = None) -> bytes:
    """Return the checkout as a .tgz, with a folder of plans where steps look for it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as tar:
        for path in _files(root):
            tar.add(path, path.relative_to(root).as_posix())
        if plans:
            tar.add(plans, PLANS)
    return packed.getvalue()


def _files(root: Path) -> list[Path]:
    """List the files that git tracks or doesn't ignore; outside of a repository all but hidden files."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if (root / ".git").exists():
        listed = subprocess.run(git, cwd=root, capture_output=True, check=True).stdout.decode()
        return sorted(root / name for name in listed.split("\0") if name and (root / name).is_file())
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") or part in _SKIPPED for part in path.relative_to(root).parts)
    )
