"""Instances of a deployed function: processes of Google's functions framework, in sandboxes of its account.

One is there from deployment on; another one starts for a request that finds all busy, each with as many as
`maxInstanceRequestConcurrency`, up to `maxInstanceCount`: https://cloud.google.com/run/docs/about-concurrency.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.machines.sandboxes import Sandboxes, copy, kill

PORT = 8080
_POLL_S, _START_TIMEOUT_S, _LAST_OUTPUT_S = 0.05, 60.0, 1.0
_MOST = 8  # processes of one function, whatever its settings allow
_LAST_LINES = 12
# https://cloud.google.com/logging/docs/structured-logging
_SEVERITIES = {
    "DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY",
}  # fmt: skip
# Special fields of a line, and where they go in its entry.
_MOVED = {
    "time": "timestamp",
    "httpRequest": "httpRequest",
    **{
        f"logging.googleapis.com/{field}": field
        for field in ("insertId", "labels", "operation", "sourceLocation", "spanId", "trace")
    },
    "logging.googleapis.com/trace_sampled": "traceSampled",
}


@dataclass(eq=False)
class _Instance:
    address: str
    requests: int = 0


@dataclass(frozen=True)
class Revision:
    """A built function: its resource, the files of its source, and the name of this deployment."""

    function: JsonObject
    files: Mapping[str, bytes]
    name: str
    python: str


class Service:
    """Serves a revision. `spawn` runs its instances, `write_log` keeps what they print."""

    def __init__(
        self,
        revision: Revision,
        sandboxes: Sandboxes,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        write_log: Callable[[JsonObject], None],
    ) -> None:
        self._revision, self._sandboxes, self._spawn, self._write_log = revision, sandboxes, spawn, write_log
        config = revision.function["serviceConfig"]
        self.timeout_s = float(config["timeoutSeconds"])
        self._concurrency = int(config["maxInstanceRequestConcurrency"])
        self._most = min(int(config["maxInstanceCount"]), _MOST)
        self._instances: list[_Instance] = []
        self._starting, self._numbers = 0, itertools.count(1)
        self._changed, self._stopped = asyncio.Condition(), asyncio.Event()

    async def start(self) -> None:
        """Start the first instance; ApiError if that fails."""
        await self._begin()

    def stop(self) -> None:
        """End each instance once it has answered its requests."""
        self._stopped.set()

    @contextlib.asynccontextmanager
    async def instance(self) -> AsyncIterator[str]:
        """Reserve a place in an instance, whose address it yields; TimeoutError if none has one."""
        began = False
        async with asyncio.timeout(_START_TIMEOUT_S), self._changed:
            while (free := self._free()) is None:
                if not began and len(self._instances) + self._starting < self._most:
                    began = True
                    self._begin()
                await self._changed.wait()
            free.requests += 1
        try:
            yield free.address
        finally:
            async with self._changed:
                free.requests -= 1
                self._changed.notify_all()

    def _free(self) -> _Instance | None:
        return next((item for item in self._instances if item.requests < self._concurrency), None)

    def _begin(self) -> asyncio.Future[None]:
        """Start an instance; the result is there once it serves."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._starting += 1
        self._spawn(self._serve(f"{self._revision.name}-{next(self._numbers)}", ready))
        return ready

    async def _serve(self, folder: str, ready: asyncio.Future[None]) -> None:
        """Start an instance and serve it until its process ends, or the service is stopped."""
        config = self._revision.function["serviceConfig"]
        last: list[str] = []

        async def lines(stream: str, printed: Sequence[str]) -> None:
            last[:] = [*last, *printed][-_LAST_LINES:]
            self._log(stream, printed)

        async with contextlib.AsyncExitStack() as ending:
            ending.callback(ready.cancel)  # does nothing once the result is set
            try:
                sandbox = await ending.enter_async_context(
                    self._sandboxes.open(folder, config["serviceAccountEmail"])
                )
                place = sandbox.place / "workspace"
                await asyncio.to_thread(_write_all, place, self._revision.files)
                line = [self._revision.python, "-m", "functions_framework", "--host", "0.0.0.0"]
                process = await sandbox.start(line, self._variables(place), place, asyncio.subprocess.PIPE)
                ending.push_async_callback(process.wait)
                ending.callback(kill, process)
                copying = [
                    asyncio.ensure_future(copy(stream, partial(lines, name)))
                    for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
                ]
                for task in copying:
                    ending.callback(task.cancel)
                if not await _answers(process, sandbox.address):
                    await asyncio.wait(copying, timeout=_LAST_OUTPUT_S)
                    why = "Container Healthcheck failed. The function didn't start:\n" + "\n".join(last)
                    ready.set_exception(failed(why))
                    return
            finally:
                self._starting -= 1
            await self._until_ended(_Instance(sandbox.address), process, ready)

    async def _until_ended(
        self, instance: _Instance, process: asyncio.subprocess.Process, ready: asyncio.Future[None]
    ) -> None:
        async with self._changed:
            self._instances.append(instance)
            self._changed.notify_all()
        ready.set_result(None)
        ends = [asyncio.ensure_future(item) for item in (self._stopped.wait(), process.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._instances.remove(instance)
            for task in ends:
                task.cancel()
        async with self._changed:
            await self._changed.wait_for(lambda: not instance.requests or process.returncode is not None)

    def _variables(self, place: Path) -> dict[str, str]:
        """Return an instance's environment: https://cloud.google.com/run/docs/container-contract#env-vars."""
        function = self._revision.function
        short = str(function["name"]).rpartition("/")[2]
        return {
            "LOG_EXECUTION_ID": "true",  # as for every new function
            **function["serviceConfig"].get("environmentVariables", {}),
            "FUNCTION_TARGET": function["buildConfig"].get("entryPoint", ""),
            "FUNCTION_SIGNATURE_TYPE": "cloudevent" if "eventTrigger" in function else "http",
            "K_SERVICE": short,
            "K_CONFIGURATION": short,
            "K_REVISION": self._revision.name,
            "PORT": str(PORT),
            "PYTHONPATH": str(place),
            "PYTHONUNBUFFERED": "1",
        }

    def _log(self, stream: str, lines: Sequence[str]) -> None:
        """Log what an instance prints, which needs no permission of its account."""
        _, project, _, location, _, short = str(self._revision.function["name"]).split("/")
        labels = {"project_id": project, "location": location, "service_name": short}
        labels |= {"configuration_name": short, "revision_name": self._revision.name}
        origin = {
            "logName": f"projects/{project}/logs/run.googleapis.com%2F{stream}",
            "resource": {"type": "cloud_run_revision", "labels": labels},
        }
        for line in filter(None, lines):
            self._write_log({**origin, **_entry(line)})


def failed(why: str) -> ApiError:
    """Return the error of a function that can't be built or doesn't start."""
    return ApiError(500, "INTERNAL", f"Build failed with status: FAILURE and message: {why}")


async def _answers(process: asyncio.subprocess.Process, address: str) -> bool:
    """Return True once the port is open; False if the process ends or its time is over before."""
    ends = asyncio.get_running_loop().time() + _START_TIMEOUT_S
    while process.returncode is None and asyncio.get_running_loop().time() < ends:
        try:
            _, writer = await asyncio.open_connection(address, PORT)
        except OSError:
            await asyncio.sleep(_POLL_S)
            continue
        writer.close()
        return True
    return False


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _entry(line: str) -> JsonObject:
    """Return severity, payload and more of a line: an object in JSON is `jsonPayload`, all else text."""
    try:
        payload = json.loads(line)
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        return {"severity": "DEFAULT", "textPayload": line}
    result: JsonObject = {_MOVED[key]: payload.pop(key) for key in _MOVED.keys() & payload.keys()}
    severity = str(payload.pop("severity", "DEFAULT")).upper()
    result["severity"] = severity if severity in _SEVERITIES else "DEFAULT"
    if payload.keys() == {"message"}:
        return {**result, "textPayload": str(payload["message"])}
    return {**result, "jsonPayload": payload}
