"""Builds and serves Cloud Run functions: the unmodified source, by Google's functions framework.

Real: the source that the build account may read, its entry point, environment and account; the framework, of
the Python that the cloud's configuration names; instances, as many as requests need. Imitated: the image.
What the source requires must be in that Python in a version that fits, or the build fails.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
from aiohttp import web

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.runtime import INTERNAL_HEADER
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.sandboxes import Sandbox, Sandboxes
from rehearsal.cloud.services.functions.instances import PORT, Revision, Service, failed

# What the build account needs: https://cloud.google.com/functions/docs/securing/build-custom-sa
_LOG, _PUSH = "logging.logEntries.create", "artifactregistry.repositories.uploadArtifacts"
_LAST_LINES = 12
_CHECK = Path(__file__).with_name("check.py")
_MAX_REQUEST_BYTES = 32 << 20  # https://cloud.google.com/run/quotas
# Headers that belong to one connection, or to the cloud, and not to what goes through it.
_NOT_FORWARDED = {
    "host",
    "connection",
    "transfer-encoding",
    "content-length",
    "keep-alive",
    "content-encoding",
    INTERNAL_HEADER.lower(),
}


class Functions:
    """Serves functions from `sandboxes`, with the interpreter `python`; `write_log` keeps their output."""

    def __init__(
        self,
        world: World,
        iam: Iam,
        sandboxes: Sandboxes,
        write_log: Callable[[JsonObject], None],
        python: str,
    ) -> None:
        self._world, self._iam, self._sandboxes, self._python = world, iam, sandboxes, python
        self._write_log = write_log
        self._services: dict[str, Service] = {}
        self._session: aiohttp.ClientSession | None = None
        self._deployed: Counter[str] = Counter()

    async def deploy(self, name: str, function: JsonObject, source: str) -> None:
        """Build and start a function in place of the one of this name; ApiError if that fails."""
        short = name.rpartition("/")[2]
        self._deployed[short] += 1
        revision = f"{short}-{self._deployed[short]:05}"
        async with self._sandboxes.open(f"{revision}-build", _build_account(function)) as sandbox:
            await self._build(function, source, sandbox)
            files = await asyncio.to_thread(_read_all, sandbox.place / "source")
        built = Revision({**function, "name": name}, files, revision, self._python)
        service = Service(built, self._sandboxes, self._world.start, self._write_log)
        await service.start()
        old, self._services[name] = self._services.get(name), service
        if old is not None:
            old.stop()

    def remove(self, name: str) -> None:
        """Stop a function."""
        if (service := self._services.pop(name, None)) is not None:
            service.stop()

    async def _build(self, function: JsonObject, source: str, sandbox: Sandbox) -> None:
        account = _build_account(function)
        repository = function["buildConfig"]["dockerRepository"]
        for permission, on in ((_LOG, self._iam.project), (_PUSH, repository)):
            if not self._iam.holds(account, permission, on):
                raise failed(
                    "Could not build the function due to a missing permission on the build service account: "
                    f"{account} lacks {permission}"
                )
        what = {"archives": [f"{source}#source"]}
        arguments = [json.dumps(what), str(sandbox.place)]
        status, printed = await sandbox.output("rehearsal.cloud.services.transfer", arguments)
        if status != 0:
            raise failed("\n".join(printed[-_LAST_LINES:]))
        if not (sandbox.place / "source" / "main.py").exists():
            raise failed("missing main.py: the source of a Python function must have it at its root")
        unmet: list[str] = []

        async def collect(output: Sequence[str]) -> None:
            unmet.extend(output)

        line = [self._python, str(_CHECK), str(sandbox.place / "source" / "requirements.txt")]
        if await sandbox.run(line, {}, sandbox.place, collect) != 0:
            raise failed("requirements.txt: " + "; ".join(filter(None, unmet)))

    async def call(self, name: str, request: web.Request, path: str) -> web.Response:
        """Return the function's answer; 503 where it isn't there any more, 504 where it takes too long."""
        service = self._services.get(name)
        if service is None:
            return web.Response(status=503, text="The service is not available.")
        if (request.content_length or 0) > _MAX_REQUEST_BYTES:
            return web.Response(status=413, text="Request Entity Too Large")
        try:
            async with service.instance() as address:
                return await self._forward(request, f"http://{address}:{PORT}{path}", service.timeout_s)
        except TimeoutError:
            return web.Response(status=429, text="Rate exceeded.")

    async def _forward(self, request: web.Request, url: str, timeout_s: float) -> web.Response:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=True, timeout=aiohttp.ClientTimeout(total=None)
            )
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _NOT_FORWARDED}
        headers["Host"] = request.host
        if "Authorization" in headers:  # as Google does it
            headers["Authorization"] = "Bearer SIGNATURE_REMOVED_BY_GOOGLE"
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(
                    request.method, url, headers=headers, data=await request.read(), allow_redirects=False
                ) as answer:
                    body = await answer.read()
                    answered = {k: v for k, v in answer.headers.items() if k.lower() not in _NOT_FORWARDED}
                    return web.Response(status=answer.status, body=body, headers=answered)
        except TimeoutError:
            return web.Response(status=504, text="upstream request timeout")
        except aiohttp.ClientError as error:
            return web.Response(status=503, text=f"The service ended: {error}")

    async def close(self) -> None:
        """Close the connections; what runs ends with the world's tasks."""
        if self._session is not None:
            await self._session.close()


def _build_account(function: JsonObject) -> str:
    return str(function["buildConfig"]["serviceAccount"]).rpartition("/")[2]


def _read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
