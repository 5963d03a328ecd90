"""Runs the steps of builds: processes in a network of the build's own, where the metadata server knows it.

Real: the steps, one after the other in one workspace, as the build's account, with nothing of whoever
started it. Imitated: images. The environment of the world stands for one that is in a repository of the
project, which the account must be allowed to read. The workspace isn't called /workspace, but is the working
directory, as it is there. Timeouts are real seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from rehearsal.cloud.iam import Iam
from rehearsal.cloud.pods import PodGuests
from rehearsal.cloud.service import ApiError, Call, JsonObject, Method, World
from rehearsal.hosts.commands import run

_IMAGE = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/]+)/[^@]+@sha256:[0-9a-f]{64}")
_READ = "artifactregistry.repositories.downloadArtifacts"
_LINES = 200  # of a step's output in one request to Cloud Logging
_FLUSH_S = 0.5
_POLL_S = 0.2


class _BuildError(Exception):
    """A build ends; `status` and why."""

    def __init__(self, status: str, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.kind = status, kind


class Builder:
    """`environment`: the variables of every step; builds lie below `folder` while they run."""

    def __init__(
        self,
        world: World,
        iam: Iam,
        guests: PodGuests,
        write_log: Method,
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._world, self._iam, self._guests = world, iam, guests
        self._write_log, self._folder, self._environment = write_log, folder, dict(environment)
        self._numbers = itertools.count()

    async def run(self, build: JsonObject) -> None:
        """From QUEUED to its end, which is written into the build."""
        build |= {"status": "WORKING", "startTime": self._world.clock.rfc3339()}
        try:
            async with asyncio.timeout(float(build["timeout"].removesuffix("s"))):
                await self._run(build)
            end: JsonObject = {"status": "SUCCESS"}
        except TimeoutError:
            end = {"status": "TIMEOUT", "statusDetail": "build timed out"}
        except _BuildError as error:
            end = {
                "status": error.status, "statusDetail": str(error),
                "failureInfo": {"type": error.kind, "detail": str(error)},
            }  # fmt: skip
        if build["status"] != "CANCELLED":
            build |= {**end, "finishTime": self._world.clock.rfc3339()}

    async def _run(self, build: JsonObject) -> None:
        number = next(self._numbers)
        place = self._folder / build["id"]
        workspace = place / "workspace"
        for folder in (workspace, place / "home"):
            folder.mkdir(parents=True)
        account = build["serviceAccount"].rpartition("/")[2]
        try:
            with self._network(number, account) as namespace:
                inside = ("nsenter", f"--net=/run/netns/{namespace}", "--")
                sandbox = _Sandbox(self, build, account, inside, place)
                if source := build.get("source", {}).get("storageSource"):
                    await sandbox.helper("FETCHSOURCE", {"fetch": source})
                for index, step in enumerate(build["steps"]):
                    await self._step(sandbox, index, step)
                if objects := build.get("artifacts", {}).get("objects"):
                    await sandbox.helper("PUSH", {"push": objects})
        finally:
            await asyncio.to_thread(_erase, place)

    async def _step(self, sandbox: _Sandbox, index: int, step: JsonObject) -> None:
        step["status"] = "WORKING"
        step["timing"] = {"startTime": self._world.clock.rfc3339()}
        try:
            self._pull(step["name"], sandbox.account)
            line = [*([step["entrypoint"]] if step.get("entrypoint") else []), *step.get("args", ())]
            options = sandbox.build.get("options", {})
            variables = dict(one.split("=", 1) for one in (*options.get("env", ()), *step.get("env", ())))
            folder = sandbox.place / "workspace" / step.get("dir", "")
            status = await sandbox.run(f'Step #{index} - "{step["id"]}"', line, variables, folder)
        except BaseException:
            step["status"] = "CANCELLED"
            raise
        finally:
            step["timing"]["endTime"] = self._world.clock.rfc3339()
        step["status"] = "SUCCESS" if status == 0 else "FAILURE"
        if status != 0:
            why = (
                f'Build step failure: build step {index} "{step["name"]}" failed: step exited with non-zero '
            )
            raise _BuildError("FAILURE", "USER_BUILD_STEP", f"{why}status: {status}")

    def _pull(self, image: str, account: str) -> None:
        """Refuses an image that isn't in a repository here which the account may read."""
        found = _IMAGE.fullmatch(image)
        name = f"projects/{found[2]}/locations/{found[1]}/repositories/{found[3]}" if found else ""
        if name not in self._world.directory or not self._iam.allowed(account, _READ, name):
            why = f'failed to pull {image}: denied: Permission "{_READ}" denied (or it may not exist)'
            raise _BuildError("FAILURE", "FETCH_SOURCE_FAILED", why)

    @contextlib.contextmanager
    def _network(self, number: int, account: str) -> Iterator[str]:
        """A network namespace on a wire of its own to where Google's addresses are."""
        name, first = f"build{number}", number % 16384 * 4
        prefix = f"172.31.{first // 256}"
        here, there = f"{prefix}.{first % 256 + 1}", f"{prefix}.{first % 256 + 2}"
        run(["ip", "netns", "add", name])
        try:
            run(["ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name])
            run(["ip", "address", "add", f"{here}/30", "dev", f"v{name}"])
            run(["ip", "link", "set", f"v{name}", "up"])
            for line in (
                ["link", "set", "lo", "up"],
                ["address", "add", f"{there}/30", "dev", "eth0"],
                ["link", "set", "eth0", "up"],
                ["route", "add", "default", "via", here],
            ):
                run(["ip", "-n", name, *line])
            self._guests.enter(there, name, account)
            yield name
        finally:
            self._guests.drop(there)
            run(["ip", "netns", "delete", name])

    async def log(self, build: JsonObject, account: str, lines: Sequence[str]) -> None:
        """Write to Cloud Logging as the build's account, which must be allowed to."""
        if build["options"]["logging"] == "NONE":
            return
        labels = {"project_id": self._world.project, "build_id": build["id"], "build_trigger_id": ""}
        body = {
            "logName": f"projects/{self._world.project}/logs/cloudbuild",
            "resource": {"type": "build", "labels": labels},
            "entries": [{"textPayload": line} for line in lines],
        }
        method = "logging.entries.write"
        call = Call("logging", "v2", method, {}, {}, body, account, cast(web.Request, None))
        try:
            await self._write_log.handler(call)
        except ApiError as error:
            raise _BuildError("FAILURE", "LOGGING_FAILURE", error.message) from None

    @property
    def environment(self) -> dict[str, str]:
        """A copy of the variables of every step."""
        return dict(self._environment)


class _Sandbox:
    """Where one build's processes run."""

    def __init__(
        self, builder: Builder, build: JsonObject, account: str, inside: Sequence[str], place: Path
    ) -> None:
        self._builder, self.build, self.account, self._inside, self.place = (
            builder,
            build,
            account,
            inside,
            place,
        )

    async def helper(self, label: str, what: JsonObject) -> None:
        """What Cloud Build does itself before and after the steps, as the build's account."""
        line = [
            sys.executable,
            "-m",
            "rehearsal.cloud.build_worker",
            json.dumps(what),
            str(self.place / "workspace"),
        ]
        if await self.run(label, line, {}, Path(__file__).resolve().parents[2]) != 0:
            kind = "FETCH_SOURCE_FAILED" if label == "FETCHSOURCE" else "PUSH_NOT_AUTHORIZED"
            raise _BuildError("FAILURE", kind, f"{label} failed; see the log")

    async def run(self, label: str, line: Sequence[str], variables: Mapping[str, str], folder: Path) -> int:
        """Run a program to its end, its output in Cloud Logging; its exit status."""
        environment = {**self._builder.environment, "HOME": str(self.place / "home"), **variables}
        process = await asyncio.create_subprocess_exec(
            *self._inside, *line, cwd=folder, env=environment, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            limit=1 << 20,
        )  # fmt: skip
        watching = asyncio.create_task(self._cancelled(process))
        try:
            await self._copy(label, process)
            status = await process.wait()
        finally:
            watching.cancel()
            _kill(process)
        if self.build["status"] == "CANCELLED":
            raise _BuildError("CANCELLED", "USER_BUILD_STEP", "the build was cancelled")
        return status

    async def _copy(self, label: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        lines: list[str] = []
        while True:
            line: Any = b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    line = await process.stdout.readline()
                    if not line:
                        break
                    lines.append(f"{label}: {line.decode(errors='replace').rstrip()}")
            if lines and (not line or len(lines) >= _LINES):
                await self._builder.log(self.build, self.account, lines)
                lines = []
        if lines:
            await self._builder.log(self.build, self.account, lines)

    async def _cancelled(self, process: asyncio.subprocess.Process) -> None:
        while process.returncode is None:
            if self.build["status"] == "CANCELLED":
                _kill(process)
            await asyncio.sleep(_POLL_S)


def _kill(process: asyncio.subprocess.Process) -> None:
    """All of the step's processes: it leads their session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _erase(place: Path) -> None:
    run(["rm", "-rf", "--one-file-system", place])
