"""An image of the published bundle: what pods otherwise install at their start, installed once.

The build's context is the bundle itself, by hash, so the same bundle gives the same context, byte for byte.
The Dockerfile installs it with the bundle's own script and without a network. Cloud Build builds and pushes
it, and prints its digest, by which queue:image names it.
https://docs.docker.com/reference/dockerfile/ and https://cloud.google.com/build/docs/build-config-file-schema
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.errors import InfraError
from infra.google.client import Client, object_url
from infra.layers.tpu import startup

BUNDLE, DOCKERFILE, CLOUD_BUILD = "bundle", "Dockerfile", "cloudbuild.yaml"
_PROGRAMS = ("uv", "gcsfuse")
_DOCKER = "gcr.io/cloud-builders/docker"
_TIMEOUT_S = 1800
_CHUNK = 1 << 20
Read = Callable[[str], bytes]
"""Reads an object of the bucket by its name."""


def from_bucket(project: str, bucket: str, environment: str) -> Read:
    """Return a reader of objects, with the user's login. It raises InfraError for a missing object."""
    client = Client(project)

    def read(name: str) -> bytes:
        if (content := client.content(object_url(bucket, name))) is None:
            raise InfraError(
                f"gs://{bucket}/{name} isn't there: the bundle isn't whole in the bucket\n"
                f"    fix: tpu publish {environment}"
            )
        return content

    return read


def dockerfile(base: str, bundle: str) -> str:
    """Return the Dockerfile; `base`: its image by digest, a Debian or Ubuntu with the essential packages."""
    place = f"/opt/tpu/bundles/{bundle}"
    mount = f"--mount=type=bind,source={BUNDLE},target={place}"
    return "\n".join((
        f"FROM {base}",
        f"LABEL tpu-bundle={bundle}",
        f"RUN {mount} bash {place}/{startup.IN_BUNDLE} {bundle} image",
        "ENV PATH=/opt/tpu/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "WORKDIR /opt/training",
        'ENTRYPOINT ["workload", "launch", "--"]',
        "",
    ))  # fmt: skip


def cloud_build(image: str, bundle: str, account: str = "") -> dict[str, Any]:
    """Return the build; `image` is a repository's path without a tag, `account` the service account that
    builds.

    The builder is Google's own, by name, and moves; what it builds from is pinned.
    """
    name = f"{image}:{bundle[:12]}"
    show = f"docker inspect --format='queue:image: {{{{index .RepoDigests 0}}}}' {name}"
    steps = [
        {"id": "build", "name": _DOCKER, "env": ["DOCKER_BUILDKIT=1"],
         "args": ["build", "--network=none", "--tag", name, "."]},
        {"id": "push", "name": _DOCKER, "args": ["push", name]},
        {"id": "digest", "name": _DOCKER, "entrypoint": "bash", "args": ["-c", show]},
    ]  # fmt: skip
    return {
        "steps": steps,
        "images": [name],
        "timeout": f"{_TIMEOUT_S}s",
        # A build of an account of its own has no default bucket for logs.
        "options": {"logging": "CLOUD_LOGGING_ONLY"},
        **({"serviceAccount": account} if account else {}),
    }


def write(
    folder: Path, bundle: str, read: Read, base: str, image: str, account: str = "",
    progress: Callable[[str], None] = lambda path: None,
) -> Sequence[Path]:  # fmt: skip
    """Write the context of a build, its Dockerfile and its Cloud Build config into `folder`.

    Files of the bundle that are there already, and as they should be, stay.

    Raises:
        InfraError: what the bucket has isn't the bundle, or it is of a version that makes no images.
        RequestError: the bucket can't be read.
    """
    manifest = _checked("the manifest", read(f"bundles/manifests/{bundle}"), bundle)
    files = [line.split("  ", 1) for line in manifest.decode().splitlines()]
    context = folder / BUNDLE
    for sha256, path in files:
        target = context / path
        if not target.is_file() or _sha256(target) != sha256:
            progress(path)
            content = _checked(path, read(f"bundles/blobs/{sha256}"), sha256)
            if path == startup.IN_BUNDLE and b"== image ]]" not in content:
                raise InfraError("the bundle is older than images of bundles\n    fix: tpu publish again")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    (context / "manifest").write_bytes(manifest)
    expected = {"manifest", *(path for _, path in files)}
    for file in [path for path in context.rglob("*") if path.is_file()]:
        name = str(file.relative_to(context))
        if name not in expected:
            file.unlink()  # an earlier bundle's
            continue
        # Docker takes modes into the layer's hash, and times not.
        file.chmod(0o755 if name in _PROGRAMS else 0o644)
        os.utime(file, (0, 0))
    config = yaml.safe_dump(cloud_build(image, bundle, account), sort_keys=False, width=200)
    for name, text in ((DOCKERFILE, dockerfile(base, bundle)), (CLOUD_BUILD, config)):
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in (DOCKERFILE, CLOUD_BUILD, BUNDLE))


def next_steps(folder: Path, project: str, region: str, image: str, environment: str) -> Iterator[str]:
    """Return the commands that build the image, and the setting for it."""
    host, _, path = image.partition("/")
    repository = path.split("/")[1] if path.count("/") > 1 else path
    location = host.removesuffix("-docker.pkg.dev")
    if host != location:
        yield (
            f"gcloud artifacts repositories create {repository} --repository-format=docker "
            f"--location={location} --project={project}   # once"
        )
    where = f"--region={region} --project={project}"
    yield f"gcloud builds submit {folder} --config={folder / CLOUD_BUILD} {where}"
    yield "then in the settings: queue:image as the build printed it, by digest, and queue:install: image"
    yield f"tpu up {environment} queue   # which lets nodes pull from that repository"


def _checked(what: str, content: bytes, sha256: str) -> bytes:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InfraError(f"{what} in the bucket isn't what its name says\n    fix: tpu publish again")
    return content


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
