"""Executions of workflows, which rehearsal/cloud/services/workflows/engine runs as the workflow's account.

https://cloud.google.com/workflows/docs/reference/executions/rest
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import Any

from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.collections.checks import not_emulated, wrong_state
from rehearsal.cloud.core.errors import JsonObject, bad_request
from rehearsal.cloud.core.runtime import OAUTH2, HttpRequest, Reply, Runtime
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.workflows.engine import Interpreter, Raised, parse
from rehearsal.cloud.services.workflows.engine.values import encoded, error

# What the default view of a list has.
_BASIC = ("name", "createTime", "startTime", "endTime", "duration", "state", "workflowRevisionId")
_MAX_ARGUMENT_BYTES = 32 << 10  # https://cloud.google.com/workflows/quotas
_LOG_TIMEOUT_S = 30.0


class _Outside:
    """The surroundings of an execution: the emulated cloud, as the workflow's account."""

    def __init__(self, world: World, runtime: Runtime, name: str, workflow: JsonObject) -> None:
        self._world, self._runtime, self._name = world, runtime, name
        self._account = workflow["serviceAccount"].rpartition("/")[2]
        _, project, _, location, _, self._workflow, _, execution = name.split("/")
        self.environment: Mapping[str, str] = {
            **workflow.get("userEnvVars", {}),
            # https://cloud.google.com/workflows/docs/reference/environment-variables
            "GOOGLE_CLOUD_PROJECT_ID": project,
            "GOOGLE_CLOUD_PROJECT_NUMBER": world.number,
            "GOOGLE_CLOUD_LOCATION": location,
            "GOOGLE_CLOUD_WORKFLOW_ID": self._workflow,
            "GOOGLE_CLOUD_WORKFLOW_REVISION_ID": workflow["revisionId"],
            "GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID": execution,
            "GOOGLE_CLOUD_SERVICE_ACCOUNT_NAME": self._account,
        }

    def now(self) -> float:
        return self._world.clock.now()

    async def sleep(self, seconds: float) -> None:
        await self._world.clock.sleep(seconds)

    async def send(self, request: HttpRequest) -> Reply:
        try:
            return await self._runtime.caller.send(request, self._account)
        except PermissionError as denied:
            raise error("AuthError", str(denied)) from None

    def log_state(self, severity: str, payload: JsonObject) -> None:
        """Write an entry of Workflows' own, for which the account needs no permission."""
        name = f"projects/{self._world.project}/logs/workflows.googleapis.com%2Fexecutions_system"
        entry = {"logName": name, "severity": severity, "jsonPayload": payload}
        self._runtime.write_log({**self.origin(), **entry})

    async def log(self, severity: str, payload: Any) -> None:
        entry = {
            "severity": severity,
            ("textPayload" if isinstance(payload, str) else "jsonPayload"): payload,
        }
        body = {
            **self.origin(),
            "logName": f"projects/{self._world.project}/logs/Workflows",
            "entries": [entry],
        }
        url, kind = "https://logging.googleapis.com/v2/entries:write", {"Content-Type": "application/json"}
        sent = json.dumps(body).encode()
        reply = await self.send(HttpRequest("POST", url, kind, sent, OAUTH2, "", _LOG_TIMEOUT_S))
        if reply.status >= 400:
            failure = json.loads(reply.body)["error"]
            raise error("SystemError", f"sys.log: {failure['message']}", code=reply.status)

    def origin(self) -> JsonObject:
        """Return the resource and labels of what is logged."""
        labels = {"location": self.environment["GOOGLE_CLOUD_LOCATION"], "workflow_id": self._workflow}
        return {
            "resource": {
                "type": "workflows.googleapis.com/Workflow",
                "labels": {"project_id": self._world.project, **labels},
            },
            "labels": {"workflows.googleapis.com/execution_id": self._name.rpartition("/")[2]},
        }


def _begin(change: Change) -> None:
    not_emulated("disableConcurrencyQuotaOverflowBuffering")(change)
    argument = change.body.get("argument", "null")
    if len(argument.encode()) > _MAX_ARGUMENT_BYTES:
        raise bad_request(f"The argument is larger than {_MAX_ARGUMENT_BYTES} bytes.")
    try:
        json.loads(argument)
    except ValueError:
        raise bad_request("The argument must be a string in JSON.") from None
    if change.old:
        return
    workflow = change.resources.find(change.name.partition("/executions/")[0])
    change.body |= {"startTime": change.world.clock.rfc3339(), "workflowRevisionId": workflow["revisionId"]}


def _start(change: Change) -> None:
    """Run what the workflow is now; a later revision of it doesn't touch this execution."""
    workflow = dict(change.resources.find(change.name.partition("/executions/")[0]))
    outside = _Outside(change.world, change.runtime, change.name, workflow)
    change.private["interpreter"] = Interpreter(parse(workflow["sourceContents"]), outside)
    change.private["task"] = change.world.start(
        _run(change.world, change.name, outside, change.private["interpreter"])
    )


async def _run(world: World, name: str, outside: _Outside, interpreter: Interpreter) -> None:
    """From ACTIVE to its end, which is written into the execution."""
    execution, began = world.directory[name], world.clock.now()
    outside.log_state("INFO", {"state": "ACTIVE"})

    def ended(**fields: Any) -> None:
        seconds = f"{world.clock.now() - began:.9f}".rstrip("0").rstrip(".")
        execution.update(endTime=world.clock.rfc3339(), duration=f"{seconds}s", **fields)

    try:
        result = await interpreter.run(json.loads(execution.get("argument", "null")))
        ended(state="SUCCEEDED", result=encoded(result))
    except Raised as raised:
        ended(state="FAILED", error=_shown_error(raised))
    except asyncio.CancelledError:
        if execution["state"] != "CANCELLED":  # the cloud closes
            raise
        ended()
    failed = {"exception": execution["error"]["context"]} if "error" in execution else {}
    severity = "ERROR" if failed else "INFO"
    outside.log_state(severity, {"state": execution["state"], **({"failure": failed} if failed else {})})


def _shown_error(raised: Raised) -> JsonObject:
    elements = [
        {
            "step": at.step,
            "routine": at.routine,
            "position": {"line": str(at.line), "column": str(at.column)},
        }
        for at in raised.trace
    ]
    try:
        payload = encoded(raised.value)
    except Raised:  # bytes of a response
        payload = encoded(str(raised.value))
    return {"payload": payload, "context": raised.context, "stackTrace": {"elements": elements}}


def _cancel(change: Change) -> JsonObject:
    wrong_state(change, "state", ("ACTIVE", "QUEUED"))
    execution = change.world.directory[change.name]
    execution["state"] = "CANCELLED"
    change.private["task"].cancel()
    execution["endTime"] = change.world.clock.rfc3339()
    return dict(execution)


def _shown(change: Change) -> None:
    interpreter = change.private.get("interpreter")
    if interpreter is not None and interpreter.at is not None and change.body["state"] == "ACTIVE":
        step = {"routine": interpreter.at.routine, "step": interpreter.at.step}
        change.body["status"] = {"currentSteps": [step]}
    view = change.call.query.get("view") or ("BASIC" if change.call.method_id.endswith(".list") else "FULL")
    if view == "BASIC":
        for key in change.body.keys() - set(_BASIC):
            del change.body[key]


ENTRY = Entry(
    "workflowexecutions",
    ("v1",),
    (
        Collection(
            "workflowexecutions.projects.locations.workflows.executions",
            permission="workflows.executions",
            new_id=lambda *_: str(uuid.uuid4()),
            ready={"state": "ACTIVE"},
            check=_begin,
            created=_start,
            shown=_shown,
            verbs={"cancel": Verb(_cancel)},
        ),
    ),
    package="google.cloud.workflows.executions.v1",
)
