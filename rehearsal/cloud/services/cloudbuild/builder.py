"""Steps of builds, run as processes in a network of the build's own, with its account.

Real: the steps, one after the other in one workspace, inheriting nothing of the world's process. Imitated:
images. The environment of the world stands for any image, named by its digest; one of a repository of the
project has to be readable by the account. The workspace isn't called /workspace, but is the working
directory, as it is there. Timeouts are real seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from google_facts import registries
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.sandboxes import Lines, Sandbox, Sandboxes

_TRANSFER = "rehearsal.cloud.services.transfer"


class _BuildError(Exception):
    """The end of a build: `status`, and the reason."""

    def __init__(self, status: str, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.kind = status, kind


class Builder:
    """Runs builds in `sandboxes`; `write_log` takes an account and its request to write their output."""

    def __init__(
        self,
        world: World,
        iam: Iam,
        sandboxes: Sandboxes,
        write_log: Callable[[str, JsonObject], Awaitable[None]],
    ) -> None:
        self._world, self._iam, self._sandboxes, self._write_log = world, iam, sandboxes, write_log

    async def run(self, build: JsonObject) -> None:
        """Run a build to its end, and write the outcome into it."""
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
        build |= {**end, "finishTime": self._world.clock.rfc3339()}

    async def _run(self, build: JsonObject) -> None:
        account = build["serviceAccount"].rpartition("/")[2]
        async with self._sandboxes.open(f"build-{build['id']}", account) as sandbox:
            (sandbox.place / "workspace").mkdir()
            if source := build.get("source", {}).get("storageSource"):
                copies = {**source, "archives": [f"gs://{source['bucket']}/{source['object']}#."]}
                arguments = [json.dumps(copies), str(sandbox.place / "workspace")]
                lines = self._lines(build, "FETCHSOURCE")
                if await sandbox.module(_TRANSFER, arguments, lines) != 0:
                    raise _BuildError("FAILURE", "FETCH_SOURCE_FAILED", "FETCHSOURCE failed; see the log")
            for index, step in enumerate(build["steps"]):
                await self._step(build, sandbox, index, step)

    async def _step(self, build: JsonObject, sandbox: Sandbox, index: int, step: JsonObject) -> None:
        step["status"] = "WORKING"
        step["timing"] = {"startTime": self._world.clock.rfc3339()}
        try:
            self._pull(step["name"], build["serviceAccount"].rpartition("/")[2])
            line = [*([step["entrypoint"]] if step.get("entrypoint") else []), *step.get("args", ())]
            options = build.get("options", {})
            variables = dict(
                variable.split("=", 1) for variable in (*options.get("env", ()), *step.get("env", ()))
            )
            folder = sandbox.place / "workspace" / step.get("dir", "")
            label = f'Step #{index} - "{step["id"]}"'
            status = await sandbox.run(line, variables, folder, self._lines(build, label))
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
        """Refuse an image of a repository here that isn't there, or that the account may not read."""
        place = registries.repository(image)
        if place is None or not image.partition("/")[0].endswith("-docker.pkg.dev"):
            return  # of gcr.io, builders are anybody's
        name = place.full_name
        if name not in self._world.directory or not self._iam.allowed(account, registries.PULL, name):
            why = f'denied: Permission "{registries.PULL}" denied (or it may not exist)'
            raise _BuildError("FAILURE", "FETCH_SOURCE_FAILED", f"failed to pull {image}: {why}")

    def _lines(self, build: JsonObject, label: str) -> Lines:
        async def lines(output: Sequence[str]) -> None:
            await self._log(build, [f"{label}: {line}" for line in output])

        return lines

    async def _log(self, build: JsonObject, lines: Sequence[str]) -> None:
        """Write to Cloud Logging as the build's account, which must be allowed to."""
        if build["options"]["logging"] == "NONE":
            return
        labels = {"project_id": self._world.project, "build_id": build["id"], "build_trigger_id": ""}
        body = {
            "logName": f"projects/{self._world.project}/logs/cloudbuild",
            "resource": {"type": "build", "labels": labels},
            "entries": [{"textPayload": line} for line in lines],
        }
        try:
            await self._write_log(build["serviceAccount"].rpartition("/")[2], body)
        except ApiError as error:
            raise _BuildError("FAILURE", "LOGGING_FAILURE", error.message) from None
