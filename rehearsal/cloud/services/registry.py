"""Docker's API of Artifact Registry, by the OCI's distribution specification: pushes and pulls.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md and
https://cloud.google.com/artifact-registry/docs/docker/authentication. Images are those of `dockerImages`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from google_facts import registries
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.server import Enabled
from rehearsal.cloud.iam.iam import Iam

_PUSH = "artifactregistry.repositories.uploadArtifacts"
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<reference>(?:uploads/)?[^/]*)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_USER = "oauth2accesstoken"  # its password is an access token


class _RefusedError(Exception):
    """An error of the specification: its status, code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Registry:
    """Repositories' images; a `Site` of the front door. Blobs are files of `folder`."""

    method_id = "artifactregistry.docker"

    def __init__(self, world: World, iam: Iam, enabled: Enabled, folder: Path) -> None:
        self._world, self._iam, self._enabled, self._folder = world, iam, enabled, folder

    def owns(self, host: str) -> bool:
        """Return True for the host of a location's repositories."""
        return host.endswith("-docker.pkg.dev")

    def principal(self, host: str, path: str, bearer: str) -> str:
        """Return the account of an access token; "" if it is invalid."""
        token = self._iam.find_token(bearer)
        return token.principal if token else ""

    async def serve(self, request: web.Request, host: str, principal: str) -> web.StreamResponse:
        """Return the answer to a request; refusals are the specification's."""
        try:
            password = _password(request)
            principal = principal or self.principal(host, request.path, password)
            if not principal:
                raise _RefusedError(401, "UNAUTHORIZED", "authentication failed")
            if request.path == "/v2/token":
                return web.json_response({"token": password, "expires_in": 300})
            if request.path in ("/v2", "/v2/"):
                return web.json_response({})
            return await self._serve(request, host, principal)
        except _RefusedError as error:
            answer = web.json_response(
                {"errors": [{"code": error.code, "message": str(error)}]}, status=error.status
            )
            if error.status == 401:
                answer.headers["WWW-Authenticate"] = (
                    f'Bearer realm="https://{host}/v2/token",service="{host}"'
                )
            return answer

    async def _serve(self, request: web.Request, host: str, principal: str) -> web.StreamResponse:
        match = _PATH.fullmatch(request.path)
        place = registries.repository(f"{host}/{match['name']}") if match else None
        if match is None or place is None or match["name"].count("/") > 2:
            raise NotEmulatedError(f"{request.method} of {request.path} at {host}")
        reads = request.method in ("GET", "HEAD")
        self._require(principal, registries.PULL if reads else _PUSH, place.full_name)
        image = f"{place.full_name}/dockerImages/{match['name'].rpartition('/')[2]}"
        kind, reference = match["kind"], match["reference"]
        if kind == "manifests" and reads:
            return self._manifest(image, reference, head=request.method == "HEAD")
        if kind == "manifests" and request.method == "PUT":
            return await self._put_manifest(request, image, reference)
        if kind == "blobs" and reads and (path := self._blob(reference)).exists():
            return web.FileResponse(path, headers={"Docker-Content-Digest": reference})
        if kind == "blobs" and reads:
            raise _RefusedError(404, "BLOB_UNKNOWN", f"blob {reference} unknown to registry")
        if (
            kind == "blobs"
            and reference.startswith("uploads/")
            and request.method in ("POST", "PATCH", "PUT")
        ):
            return await self._upload(request, reference.removeprefix("uploads/"))
        raise NotEmulatedError(f"{request.method} of an image's {kind}")

    def _require(self, principal: str, permission: str, repository: str) -> None:
        try:
            self._enabled.require("artifactregistry")
        except ApiError as error:
            raise _RefusedError(403, "DENIED", error.message) from None
        if not self._iam.holds(principal, permission, repository):
            why = f'Permission "{permission}" denied on resource "{repository}" (or it may not exist)'
            raise _RefusedError(403, "DENIED", why)
        body = self._world.directory.get(repository)
        if body is None:
            why = f'Repository "{repository.rpartition("/")[2]}" not found'
            raise _RefusedError(404, "NAME_UNKNOWN", why)
        if body["format"] != "DOCKER" or body["mode"] != "STANDARD_REPOSITORY":
            raise NotEmulatedError(f"Images of {repository}, a {body['mode']} of {body['format']}")

    def _versions(self, image: str) -> Iterator[tuple[str, JsonObject]]:
        for name, body in self._world.directory.items():
            if name.startswith(f"{image}@"):
                yield name, body

    def _manifest(self, image: str, reference: str, *, head: bool) -> web.Response:
        for name, body in self._versions(image):
            digest = name.rpartition("@")[2]
            if reference in (digest, *body["tags"]):
                content = self._world.private[name]["manifest"]
                headers = {"Docker-Content-Digest": digest, "Content-Type": body["mediaType"]}
                if head:
                    return web.Response(headers={**headers, "Content-Length": str(len(content))})
                return web.Response(body=content, headers=headers)
        raise _RefusedError(404, "MANIFEST_UNKNOWN", f'Failed to fetch "{reference}"')

    async def _put_manifest(self, request: web.Request, image: str, reference: str) -> web.Response:
        content = await request.read()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        is_digest = _DIGEST.fullmatch(reference) is not None
        if is_digest and reference != digest:
            raise _RefusedError(400, "DIGEST_INVALID", f"the manifest's digest is {digest}")
        document: dict[str, Any] = json.loads(content)
        if "layers" not in document:
            raise NotEmulatedError("An image of several platforms")
        parts = [document["config"], *document["layers"]]
        for part in parts:
            if not self._blob(part["digest"]).exists():
                raise _RefusedError(404, "MANIFEST_BLOB_UNKNOWN", f"blob {part['digest']} unknown")
        for _, body in self._versions(image):
            body["tags"] = [tag for tag in body["tags"] if tag != reference]
        name, now = f"{image}@{digest}", self._world.clock.rfc3339()
        earlier = self._world.directory.get(name, {"tags": [], "uploadTime": now})
        self._world.private[name] = {"manifest": content}
        self._world.directory[name] = {
            "name": name, "mediaType": request.content_type, "updateTime": now,
            "uploadTime": earlier["uploadTime"],
            "tags": [*earlier["tags"], *([] if is_digest else [reference])],
            "uri": f"{request.host}/{request.path.split('/', 2)[2].rpartition('/manifests/')[0]}@{digest}",
            "imageSizeBytes": str(sum(part["size"] for part in parts)),
        }  # fmt: skip
        return web.Response(status=201, headers={"Docker-Content-Digest": digest, "Location": request.path})

    async def _upload(self, request: web.Request, session: str) -> web.Response:
        """Begin, continue or end an upload; one request may do all."""
        if not session:
            session = str(uuid.uuid4())
        elif not re.fullmatch(r"[0-9a-f-]{36}", session):
            raise _RefusedError(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{session}.partial"
        with partial.open("ab") as file:
            async for chunk in request.content.iter_chunked(1 << 20):
                file.write(chunk)
            size = file.tell()
        digest = request.query.get("digest", "")
        if not digest:
            location = f"{request.path.partition('/uploads/')[0]}/uploads/{session}"
            headers = {"Location": location, "Range": f"0-{max(0, size - 1)}", "Docker-Upload-UUID": session}
            return web.Response(status=202, headers=headers)
        with partial.open("rb") as file:
            actual = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        if actual != digest:
            partial.unlink()
            raise _RefusedError(400, "DIGEST_INVALID", f"the content's digest is {actual}")
        partial.rename(self._blob(digest))
        location = f"{request.path.partition('/uploads/')[0]}/{digest}"
        return web.Response(status=201, headers={"Location": location, "Docker-Content-Digest": digest})

    def _blob(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise _RefusedError(400, "DIGEST_INVALID", f"{digest[:80]!a} is no sha256")
        return self._folder / digest.replace(":", "-")


def _password(request: web.Request) -> str:
    """Return the password of `oauth2accesstoken`; "" of others, and without any."""
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return password if user == _USER else ""
