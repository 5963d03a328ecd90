"""Runs batches of the serverless Spark service: the real main file, as a process of the batch's account.

Real: the script, its arguments, files, archives and properties; tokens of the account; how long it takes,
which `approximateUsage` counts. Imitated: the cluster. Spark is that of the Python that the cloud's
configuration names, with a local master of the driver's cores, as far as this machine has them, and 2 GiB for
the driver. The time to live is virtual.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.sandboxes import Lines, Sandbox, Sandboxes
from rehearsal.cloud.services.dataproc import rules as spark_rules

# A permission of the batch's account that both documented roles hold, and the role for runtime 2. That one
# holds dataproc.agents.* and dataproc.tasks.* as well: whether nodes need these isn't documented.
# https://cloud.google.com/dataproc-serverless/docs/concepts/service-account
NEEDED, ROLE = ("dataproc.batches.sparkApplicationWrite",), "roles/dataproc.worker"
_DRIVER_MEMORY = "2g"
_LAST_LINES = 12  # of the output, in the message of a batch that failed
_ENVIRONMENT = ("spark.dataproc.driverEnv.", "spark.executorEnv.")
_PYTHON = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


class Batches:
    """Runs them in `sandboxes`, with the interpreter `python`; `write_log` takes an account and its request
    to write their output."""

    def __init__(
        self,
        world: World,
        iam: Iam,
        sandboxes: Sandboxes,
        write_log: Callable[[str, JsonObject], Awaitable[None]],
        python: str = "",
    ) -> None:
        self._world, self._iam, self._sandboxes, self._write_log = world, iam, sandboxes, write_log
        self._python = python

    async def run(self, batch: JsonObject) -> None:
        """Run a PENDING batch to its end; ApiError if it fails or exceeds its time to live."""
        if not self._python:
            raise _failed("this rehearsal has no Python with PySpark to run batches with (spark_python)")
        if "pysparkBatch" not in batch:
            raise _failed("only PySpark batches can be run here")
        account = batch["environmentConfig"]["executionConfig"]["serviceAccount"].rpartition("/")[2]
        if missing := [
            permission for permission in NEEDED if not self._iam.holds(account, permission, self._iam.project)
        ]:
            raise _failed(f"Service account {account} lacks {', '.join(missing)}; {ROLE} has them.")
        async with self._sandboxes.open(f"batch-{batch['uuid']}", account) as sandbox:
            folder = sandbox.place / "work"
            folder.mkdir()
            last: deque[str] = deque(maxlen=_LAST_LINES)

            async def lines(output: Sequence[str]) -> None:
                last.extend(output)
                await self._log(batch, account, output)

            await self._fetch(batch, sandbox, folder)
            move(self._world, batch, "RUNNING")
            began = time.monotonic()
            try:
                status = await self._main(batch, sandbox, folder, lines)
            finally:
                spent = spark_rules.usage(_properties(batch), time.monotonic() - began)
                usage = {**spent, "updateTime": self._world.clock.rfc3339()}
                batch.setdefault("runtimeInfo", {})["approximateUsage"] = usage
            if status != 0:
                raise _failed(f"Job failed with exit status {status}:\n" + "\n".join(last))

    async def _fetch(self, batch: JsonObject, sandbox: Sandbox, folder: Path) -> None:
        given = batch["pysparkBatch"]
        files = [given["mainPythonFileUri"], *given.get("pythonFileUris", ()), *given.get("fileUris", ())]
        files += given.get("jarFileUris", ())
        what = {"files": files, "archives": given.get("archiveUris", [])}
        status, printed = await sandbox.output(
            "rehearsal.cloud.services.transfer", [json.dumps(what), str(folder)]
        )
        if status != 0:
            raise _failed("\n".join(printed[-_LAST_LINES:]))

    async def _main(self, batch: JsonObject, sandbox: Sandbox, folder: Path, lines: Lines) -> int:
        """Return the exit status of the main file; ApiError CANCELLED when its time to live is over."""
        given, name = batch["pysparkBatch"], batch["pysparkBatch"]["mainPythonFileUri"].rpartition("/")[2]
        line = [self._python, str(folder / name), *given.get("args", ())]
        running = asyncio.ensure_future(sandbox.run(line, self._variables(batch, folder), folder, lines))
        ttl_s = float(batch["environmentConfig"]["executionConfig"]["ttl"].removesuffix("s"))
        ending = asyncio.ensure_future(self._world.clock.sleep(ttl_s))
        try:
            await asyncio.wait([running, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over = not running.done()
            for task in (running, ending):
                task.cancel()
            await asyncio.wait([running, ending])
        if over:
            why = f"Batch was cancelled: it exceeded its time to live of {ttl_s:.0f} s."
            raise ApiError(499, "CANCELLED", why, reason="cancelled")
        return running.result()

    def _variables(self, batch: JsonObject, folder: Path) -> dict[str, str]:
        """Return the variables that `spark-submit` would set, for a process that makes its own session."""
        given, properties = batch["pysparkBatch"], _properties(batch)
        variables = {
            name.removeprefix(prefix): value
            for prefix in _ENVIRONMENT
            for name, value in properties.items()
            if name.startswith(prefix)
        }
        cores = min(spark_rules.node_of("driver", properties).cores, os.cpu_count() or 1)
        conf = {
            **{
                name: value
                for name, value in properties.items()
                if not name.startswith(_ENVIRONMENT) and "dataproc" not in name
            },
            "spark.master": f"local[{cores}]",
            "spark.driver.memory": _DRIVER_MEMORY,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        if jars := given.get("jarFileUris"):
            words += ["--jars", ",".join(str(folder / uri.rpartition("/")[2]) for uri in jars)]
        archives = (uri for uri in given.get("pythonFileUris", ()) if not uri.endswith(".py"))
        modules = [str(folder), *(str(folder / uri.rpartition("/")[2]) for uri in archives)]
        # The packages of an environment that came as an archive; its interpreter stays behind.
        modules += map(str, sorted(folder.glob("*/lib/python3*/site-packages")))
        return {
            **variables,
            **dict.fromkeys(_PYTHON, self._python),
            "PYTHONPATH": ":".join(modules),
            "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONUNBUFFERED": "1",
        }

    async def _log(self, batch: JsonObject, account: str, lines: Sequence[str]) -> None:
        """Write to Cloud Logging as the batch's account; lines without permission are lost, as at Google."""
        _, project, _, location, _, short = batch["name"].split("/")
        labels = {"project_id": project, "location": location, "batch_id": short}
        body = {
            "logName": f"projects/{project}/logs/dataproc.googleapis.com%2Foutput",
            "resource": {"type": "cloud_dataproc_batch", "labels": labels},
            "entries": [
                {"severity": "INFO", "jsonPayload": {"component": "driver", "message": line}}
                for line in lines
            ],
        }
        try:
            await self._write_log(account, body)
        except ApiError as error:
            if error.code != 403:
                raise


def move(world: World, batch: JsonObject, state: str, message: str = "") -> None:
    """Change the state; the one before goes into the history."""
    before = {"state": batch["state"], "stateStartTime": batch["stateTime"]}
    if batch.get("stateMessage"):
        before["stateMessage"] = batch["stateMessage"]
    batch.setdefault("stateHistory", []).append(before)
    batch |= {"state": state, "stateTime": world.clock.rfc3339()}
    if message:
        batch["stateMessage"] = message


def _failed(why: str) -> ApiError:
    return ApiError(400, "FAILED_PRECONDITION", why)


def _properties(batch: JsonObject) -> dict[str, str]:
    return dict(batch.get("runtimeConfig", {}).get("properties", {}))
