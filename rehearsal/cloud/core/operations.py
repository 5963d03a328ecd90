"""Long-running operations, in the three forms that Google's APIs have.

`compute#operation` belongs to a zone, a region or the project and goes PENDING → RUNNING → DONE, the GKE
API's to a location; `google.longrunning.Operation` (most APIs) is done or not done. All take virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, not_found
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World

Work = Callable[[], Awaitable[JsonObject | None]]
Cleanup = Callable[[ApiError], None]

# Set by a fault rule for the request that is being handled: the operation fails with this error, once.
planned_failure: ContextVar[ApiError | None] = ContextVar("planned_failure", default=None)

# Set by the audit log for the request that is being handled: reports the failure of the operation it starts.
on_failure: ContextVar[Callable[[ApiError], None] | None] = ContextVar("on_failure", default=None)

# google.rpc.Code, by canonical name (https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto)
RPC_CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}

_INTERNAL = ApiError(500, "INTERNAL", "Internal error encountered.")
_CANCELLED = ApiError(499, "CANCELLED", "The operation was cancelled.", reason="cancelled")

_COMPUTE, _CONTAINER = "compute", "container"
# compute.*Operations.wait returns after two minutes at the latest, done or not.
_WAIT_S = 120.0


@dataclass
class _Operation:
    api: str
    body: JsonObject
    done: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    task: asyncio.Task[None] | None = None


class Operations:
    """All operations of the cloud, by full name (`projects/P/zones/Z/operations/operation-…`).

    `busy`: which operation is changing a resource, by full names.
    """

    def __init__(self, world: World) -> None:
        self.busy: dict[str, str] = {}
        self._world = world
        self._operations: dict[str, _Operation] = {}
        self._ids = itertools.count(int(time.time()) * 1_000_000)

    def get(self, name: str) -> JsonObject:
        """Return the operation's current body; ApiError 404 if there is none of this name."""
        return self._find(name).body

    async def wait(self, name: str, timeout_s: float = _WAIT_S) -> JsonObject:
        """Return the body once the operation is done, or after `timeout_s` real seconds."""
        operation = self._find(name)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(operation.done.wait(), timeout_s)
        return operation.body

    def names(self, api: str, parent: str) -> list[str]:
        """Return full names of an API's operations at or below `projects/P` or `projects/P/locations/Z`."""
        running = self._operations.items()
        return [name for name, operation in running if operation.api == api and name.startswith(f"{parent}/")]

    async def cancel(self, name: str) -> None:
        """Cancel a running operation: it reverts its beginning and ends as CANCELLED; ApiError 404."""
        operation = self._find(name)
        if operation.task is not None and not operation.done.is_set():
            operation.cancelled = True
            operation.task.cancel()
            await operation.done.wait()

    def delete(self, name: str) -> None:
        """Forget an operation, without stopping it; ApiError 404 if there is none of this name."""
        self._find(name)
        del self._operations[name]

    def longrunning(
        self,
        *,
        api: str,
        parent: str,
        metadata: JsonObject,
        response_type: str,
        work: Work,
        on_error: Cleanup | None = None,
        name: str | None = None,
        ends: str = "endTime",
    ) -> JsonObject:
        """Start a google.longrunning.Operation and return its first body.

        `work` runs in the background, takes its virtual time itself and returns the response, to which
        `response_type` (`google.cloud.tpu.v2.Node`) is added as `@type`. An ApiError that it raises, or that
        a fault rule plans, becomes the operation's error after `on_error` has undone what was begun.
        `parent` is `projects/P/locations/Z`, or "" for `operations/…`; `ends` is the metadata's field
        for the time of the end.
        """
        name = name or f"{parent}/operations/operation-{uuid.uuid4()}".removeprefix("/")
        first: JsonObject = {"name": name, "metadata": dict(metadata), "done": False}

        def end(operation: _Operation, answer: JsonObject | None, error: ApiError | None) -> None:
            body: JsonObject = {"name": name, "metadata": operation.body["metadata"], "done": True}
            if error is None:
                body["response"] = {"@type": f"type.googleapis.com/{response_type}", **(answer or {})}
            else:
                body["error"] = rpc_status(error)
            if "createTime" in body["metadata"] and ends:
                body["metadata"][ends] = self._world.clock.rfc3339()
            operation.body = body

        return self._start(api, name, first, _no_time, work, end, on_error)

    def compute(
        self,
        call: Call,
        *,
        verb: str,
        target: str,
        target_id: str,
        duration_s: float,
        work: Callable[[], None],
        on_error: Cleanup | None = None,
        scope: str | None = None,
        waits: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> JsonObject:
        """Start a compute#operation of `duration_s` virtual seconds and return its first body.

        It ends after `waits`, too.

        `work` makes the change at the end. `target` is the resource's full name, from which the scope
        (`projects/P/zones/Z`, `…/regions/R`, `…/global`) follows without a `scope`.
        """
        scope = scope or target.rsplit("/", 2)[0]
        op_name = f"operation-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:12]}"
        name = f"{scope}/operations/{op_name}"
        body: JsonObject = {
            "kind": "compute#operation",
            "id": str(next(self._ids)),
            "name": op_name,
            "operationType": verb,
            "targetLink": compute_link(target),
            "targetId": target_id,
            "status": "PENDING",
            "user": call.principal,
            "progress": 0,
            "insertTime": self._world.clock.rfc3339(),
            "selfLink": compute_link(name),
        }
        kind, _, place = scope.removeprefix(f"projects/{self._world.project}/").partition("/")
        if place:
            body[kind.removesuffix("s")] = compute_link(scope)

        def end(operation: _Operation, answer: JsonObject | None, error: ApiError | None) -> None:
            if error is not None:
                body["error"] = {"errors": [{"code": error.status, "message": error.message}]}
                body.update(httpErrorStatusCode=error.code, httpErrorMessage=error.reason)
            body.update(status="DONE", progress=100, endTime=self._world.clock.rfc3339())

        before = self._pass(body, duration_s, waits)
        return self._start(_COMPUTE, name, body, before, _later(work), end, on_error)

    def container(
        self,
        *,
        kind: str,
        target: str,
        duration_s: float,
        work: Callable[[], None],
        on_error: Cleanup | None = None,
        waits: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> JsonObject:
        """Start an operation of the GKE API (`CREATE_CLUSTER`) of so many virtual seconds; its first body.

        It ends after `waits`, too.

        Its form: https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.operations
        """
        short = f"operation-{time.time_ns() // 1_000_000}-{uuid.uuid4()}"
        parts = target.split("/")
        scope, api = "/".join(parts[:4]), "https://container.googleapis.com/v1/"
        numbered = target.replace(self._world.project, self._world.number, 1)
        body: JsonObject = {
            "name": short,
            "operationType": kind,
            "status": "PENDING",
            "selfLink": f"{api}projects/{self._world.number}/locations/{parts[3]}/operations/{short}",
            "targetLink": f"{api}{numbered}",
            "startTime": self._world.clock.rfc3339(),
            "location": parts[3],
            "zone": parts[3],
        }

        def end(operation: _Operation, answer: JsonObject | None, error: ApiError | None) -> None:
            if error is not None:
                body.update(error=rpc_status(error), statusMessage=error.message)
            body.update(status="DONE", endTime=self._world.clock.rfc3339())

        name = f"{scope}/operations/{short}"

        before = self._pass(body, duration_s, waits)
        return self._start(_CONTAINER, name, body, before, _later(work), end, on_error)

    def _pass(
        self, body: JsonObject, duration_s: float, waits: Sequence[Callable[[], Awaitable[None]]]
    ) -> Callable[[], Awaitable[None]]:
        """PENDING for a tenth of the time, then RUNNING, until `waits` are over."""

        async def run() -> None:
            clock = self._world.clock
            await clock.sleep(duration_s / 10)
            body.update(status="RUNNING", startTime=clock.rfc3339())
            await clock.sleep(duration_s * 9 / 10)
            for wait in waits:
                await wait()

        return run

    def _start(
        self,
        api: str,
        name: str,
        first: JsonObject,
        before: Callable[[], Awaitable[None]],
        work: Work,
        end: Callable[[_Operation, JsonObject | None, ApiError | None], None],
        on_error: Cleanup | None,
    ) -> JsonObject:
        """Start an operation: `before` takes time, `work` makes the change, `end` sets the body."""
        operation = self._operations[name] = _Operation(api, first)
        planned, report = _take_planned(), on_failure.get()

        async def run() -> None:
            answer: JsonObject | None = None
            error: ApiError | None = None
            try:
                if operation.cancelled:
                    raise _CANCELLED
                operation.task = asyncio.current_task()
                await before()
                if planned is not None:
                    raise planned
                answer = await work()
            except asyncio.CancelledError:
                if not operation.cancelled:
                    raise
                error = self._undo(name, _CANCELLED, on_error)
            except Exception as failure:
                error = self._undo(name, failure, on_error)
            end(operation, answer, error)
            if error is not None and report is not None:
                report(error)
            operation.done.set()

        self._world.spawn(run())
        return dict(first)

    def _find(self, name: str) -> _Operation:
        operation = self._operations.get(name)
        if operation is None:
            raise not_found(name)
        return operation

    def _undo(self, name: str, error: Exception, on_error: Cleanup | None) -> ApiError:
        """Revert the beginning of a failed operation; return the error to show."""
        shown = error if isinstance(error, ApiError) else _INTERNAL
        if shown is not error or isinstance(error, NotEmulatedError):  # which no answer will show
            self._world.blame(f"operation {name}", error)
        if on_error is not None:
            on_error(shown)
        return shown


async def _no_time() -> None:
    """Return at once."""


def _later(work: Callable[[], None]) -> Work:
    """Wrap a plain function as the work of an operation."""

    async def run() -> None:
        work()

    return run


def _take_planned() -> ApiError | None:
    """Take the failure that a fault rule plans for the first operation of its request."""
    failure = planned_failure.get()
    planned_failure.set(None)
    return failure


def rpc_status(error: ApiError) -> JsonObject:
    """Return the google.rpc.Status of an operation that ended in this error."""
    status: JsonObject = {"code": RPC_CODES.get(error.status, 2), "message": error.message}
    if error.details:
        status["details"] = error.details
    return status


def compute_link(name: str) -> str:
    """Return the selfLink of a compute resource (v1; `versioned` rewrites it)."""
    return f"https://www.googleapis.com/compute/v1/{name}"


def versioned(call: Call, answer: JsonObject) -> JsonObject:
    """Rewrite the links of an answer of compute's to the version that was called."""
    if call.api != _COMPUTE or call.version == "v1":
        return answer
    base = compute_link("")
    linked: JsonObject = _relink(answer, base, base.replace("/v1/", f"/{call.version}/"))
    return linked


def _relink(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return new + value[len(old) :] if value.startswith(old) else value
    if isinstance(value, dict):
        return {key: _relink(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_relink(item, old, new) for item in value]
    return value
