"""Builds and serves Cloud Run functions: the unmodified source, by Google's functions framework.

Real: the source that the build account may read, its entry point, environment and account; the framework, of
the Python that the cloud's configuration names. Imitated: the image. What the source requires must be in that
Python in a version that fits, or the build fails; there is one process, from deployment on, at any load.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.sandboxes import Sandbox, Sandboxes, copy, kill

_PORT, _POLL_S, _START_TIMEOUT_S = 8080, 0.05, 60.0
# What the build account needs: https://cloud.google.com/functions/docs/securing/build-custom-sa
_LOG, _PUSH = "logging.logEntries.create", "artifactregistry.repositories.uploadArtifacts"
_LAST_LINES = 12
_CHECK = Path(__file__).with_name("check.py")
# Headers that belong to one connection, and not to what goes through it.
_OF_CONNECTIONS = {
    "host",
    "connection",
    "transfer-encoding",
    "content-length",
    "keep-alive",
    "content-encoding",
}


@dataclass
class _Running:
    """A deployed function; `stop` ends it."""

    address: str
    timeout_s: float
    stop: asyncio.Event
    task: asyncio.Task[None] | None = None


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
        self._running: dict[str, _Running] = {}
        self._session: aiohttp.ClientSession | None = None
        self._count = 0

    async def deploy(self, name: str, function: JsonObject) -> None:
        """Build and start a function in place of the one of this name; ApiError if that fails."""
        self._count += 1
        folder = f"function-{self._count}"
        async with self._sandboxes.open(f"{folder}-build", _build_account(function)) as sandbox:
            await self._build(name, function, sandbox)
            source = await asyncio.to_thread(_read_all, sandbox.place / "source")
        ready: asyncio.Future[_Running] = asyncio.get_running_loop().create_future()
        task = self._world.start(self._serve(name, folder, function, source, ready))
        running = await ready
        running.task = task
        old, self._running[name] = self._running.get(name), running
        if old is not None:
            old.stop.set()

    def remove(self, name: str) -> None:
        """Stop a function."""
        if (running := self._running.pop(name, None)) is not None:
            running.stop.set()

    async def _build(self, name: str, function: JsonObject, sandbox: Sandbox) -> None:
        account = _build_account(function)
        repository = function["buildConfig"]["dockerRepository"]
        for permission, on in ((_LOG, self._iam.project), (_PUSH, repository)):
            if not self._iam.holds(account, permission, on):
                raise _failed(
                    "Could not build the function due to a missing permission on the build service account: "
                    f"{account} lacks {permission}"
                )
        source = function["buildConfig"]["source"]["storageSource"]
        what = {"archives": [f"gs://{source['bucket']}/{source['object']}#source"]}
        arguments = [json.dumps(what), str(sandbox.place)]
        status, printed = await sandbox.output("rehearsal.cloud.services.transfer", arguments)
        if status != 0:
            raise _failed("\n".join(printed[-_LAST_LINES:]))
        if not (sandbox.place / "source" / "main.py").exists():
            raise _failed("missing main.py: the source of a Python function must have it at its root")
        unmet: list[str] = []

        async def collect(output: Sequence[str]) -> None:
            unmet.extend(output)

        line = [self._python, str(_CHECK), str(sandbox.place / "source" / "requirements.txt")]
        if await sandbox.run(line, {}, sandbox.place, collect) != 0:
            raise _failed("requirements.txt: " + "; ".join(filter(None, unmet)))

    async def _serve(
        self,
        name: str,
        folder: str,
        function: JsonObject,
        source: dict[str, bytes],
        ready: asyncio.Future[_Running],
    ) -> None:
        """Start a function and serve it until it is stopped."""
        config = function["serviceConfig"]
        signature = "cloudevent" if "eventTrigger" in function else "http"
        last: list[str] = []

        async def lines(output: Sequence[str]) -> None:
            last[:] = [*last, *output][-_LAST_LINES:]
            self._log(name, output)

        async with contextlib.AsyncExitStack() as ending:
            ending.callback(ready.cancel)  # does nothing once the result is set
            sandbox = await ending.enter_async_context(
                self._sandboxes.open(folder, config["serviceAccountEmail"])
            )
            place = sandbox.place / "workspace"
            await asyncio.to_thread(_write_all, place, source)
            line = [self._python, "-m", "functions_framework", "--host", "0.0.0.0", "--port", str(_PORT)]
            variables = {
                **config.get("environmentVariables", {}),
                "FUNCTION_TARGET": function["buildConfig"].get("entryPoint", ""),
                "FUNCTION_SIGNATURE_TYPE": signature,
                "K_SERVICE": name.rpartition("/")[2],
                "PYTHONPATH": str(place),
                "PYTHONUNBUFFERED": "1",
            }
            process = await sandbox.start(line, variables, place)
            copying = asyncio.ensure_future(copy(process, lines))
            running = _Running(sandbox.address, float(config["timeoutSeconds"]), asyncio.Event())
            # The function is ready once its port is open; then it is served until it is replaced or removed.
            try:
                if not await _answers(process, sandbox.address):
                    await asyncio.wait([copying], timeout=1)
                    ready.set_exception(
                        _failed(
                            "Container Healthcheck failed. The function didn't start:\n" + "\n".join(last)
                        )
                    )
                    return
                ready.set_result(running)
                await running.stop.wait()
            finally:
                kill(process)
                copying.cancel()
                await process.wait()

    async def call(self, name: str, request: web.Request, path: str) -> web.Response:
        """Return the function's answer; 503 where it isn't there any more, 504 where it takes too long."""
        running = self._running.get(name)
        if running is None:
            return web.Response(status=503, text="The service is not available.")
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=True)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _OF_CONNECTIONS}
        headers["Host"] = request.host
        if "Authorization" in headers:  # as Google does it
            headers["Authorization"] = "Bearer SIGNATURE_REMOVED_BY_GOOGLE"
        try:
            async with asyncio.timeout(running.timeout_s):
                async with self._session.request(
                    request.method, f"http://{running.address}:{_PORT}{path}", headers=headers,
                    data=await request.read(), allow_redirects=False,
                ) as answer:  # fmt: skip
                    body = await answer.read()
                    answered = {k: v for k, v in answer.headers.items() if k.lower() not in _OF_CONNECTIONS}
                    return web.Response(status=answer.status, body=body, headers=answered)
        except TimeoutError:
            return web.Response(status=504, text="upstream request timeout")
        except aiohttp.ClientError as error:
            return web.Response(status=503, text=f"The service ended: {error}")

    async def close(self) -> None:
        """Close the connections; what runs ends with the world's tasks."""
        if self._session is not None:
            await self._session.close()

    def _log(self, name: str, lines: Sequence[str]) -> None:
        """Log the function's output, which needs no permission of its account."""
        _, project, _, location, _, short = name.split("/")
        labels = {"project_id": project, "location": location, "service_name": short}
        labels |= {"configuration_name": short, "revision_name": f"{short}-00001"}
        for line in lines:
            self._write_log(
                {
                    "logName": f"projects/{project}/logs/run.googleapis.com%2Fstderr",
                    "resource": {"type": "cloud_run_revision", "labels": labels},
                    "severity": "DEFAULT",
                    "textPayload": line,
                }
            )


async def _answers(process: asyncio.subprocess.Process, address: str) -> bool:
    """Return True once the port is open; False if the process ends or its time is over before."""
    ends = asyncio.get_running_loop().time() + _START_TIMEOUT_S
    while process.returncode is None and asyncio.get_running_loop().time() < ends:
        try:
            _, writer = await asyncio.open_connection(address, _PORT)
        except OSError:
            await asyncio.sleep(_POLL_S)
            continue
        writer.close()
        return True
    return False


def _build_account(function: JsonObject) -> str:
    return str(function["buildConfig"]["serviceAccount"]).rpartition("/")[2]


def _failed(why: str) -> ApiError:
    return ApiError(400, "FAILED_PRECONDITION", f"Build failed with status: FAILURE. {why}")


def _read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _write_all(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
