"""Functions in a cloud that builds and serves them: its accounts, sources and requests."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from boxed_front import PROJECT, Boxed, L, P

from rehearsal.cloud.core.runtime import HttpRequest
from rehearsal.world.layout import cache_dir
from rehearsal.world.runtimes import ensure

FUNCTIONS = f"cloudfunctions.googleapis.com/v2/{L}/functions"
REPOSITORY = f"{L}/repositories/images"


@contextmanager
def opened() -> Iterator[Boxed]:
    """A cloud with the bucket `raw`, a repository, and the accounts `builder`, `runner` and `caller`."""
    python = str(ensure("functions", cache_dir()))
    with (
        tempfile.TemporaryDirectory(prefix="box-") as folder,
        closing(Boxed(Path(folder), function_python=python)) as boxed,
    ):
        boxed.bucket("raw")
        builder = boxed.account("builder", "roles/logging.logWriter", "roles/storage.objectViewer")
        runner = boxed.account("runner")
        boxed.account("caller")
        boxed.grant("projects/_/buckets/raw", "roles/storage.objectViewer", f"serviceAccount:{runner}")
        url = f"artifactregistry.googleapis.com/v1/{L}/repositories?repositoryId=images"
        boxed.done("artifactregistry.googleapis.com/v1", boxed.answer("POST", url, {"format": "DOCKER"}))
        boxed.grant(REPOSITORY, "roles/artifactregistry.writer", f"serviceAccount:{builder}")
        yield boxed


def source(boxed: Boxed, name: str, main: str, requirements: str = "") -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("main.py", main)
        archive.writestr("requirements.txt", requirements)
    boxed.upload(name, packed.getvalue())


def email(name: str) -> str:
    return f"{name}@{PROJECT}.iam.gserviceaccount.com"


def body(source: str = "f.zip", builder: str = "builder", generation: str = "", **config: Any) -> Any:
    pinned = {"generation": generation} if generation else {}
    return {
        "buildConfig": {
            "runtime": "python312",
            "entryPoint": "check",
            "source": {"storageSource": {"bucket": "raw", "object": source, **pinned}},
            "serviceAccount": f"{P}/serviceAccounts/{email(builder)}",
            "dockerRepository": REPOSITORY,
        },
        "serviceConfig": {
            "serviceAccountEmail": email("runner"),
            "environmentVariables": {"MODE": "strict"},
            **config,
        },
    }


def deploy(boxed: Boxed, name: str, **of: Any) -> Any:
    started = boxed.answer("POST", f"{FUNCTIONS}?functionId={name}", body(**of))
    return boxed.done("cloudfunctions.googleapis.com/v2", started)


def address(boxed: Boxed, name: str) -> str:
    return str(boxed.answer("GET", f"{FUNCTIONS}/{name}")["serviceConfig"]["uri"])


def request(uri: str, path: str = "/", auth: str = "OIDC", audience: str = "") -> HttpRequest:
    """A request to a function's own address."""
    sent, kind = json.dumps({"name": "a.txt"}).encode(), {"Content-Type": "application/json"}
    return HttpRequest("POST", uri + path, kind, sent, auth, audience or uri, 30)
