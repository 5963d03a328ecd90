"""Long-running operations, in the two forms that Google's APIs have.

`compute#operation` belongs to a zone, a region or the project and goes PENDING → RUNNING → DONE;
`google.longrunning.Operation` (tpu, serviceusage) is only done or not done. Both take virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from rehearsal.cloud.service import ApiError, Call, JsonObject, NotEmulatedError, World, not_found

Work = Callable[[], Awaitable[JsonObject | None]]
Cleanup = Callable[[ApiError], None]

# Set by a fault rule for the request that is being handled: the operation it starts ends so, and takes it.
planned_failure: ContextVar[ApiError | None] = ContextVar("planned_failure", default=None)

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

# compute.*Operations.wait returns after two minutes at the latest, done or not.
_WAIT_S = 120.0


@dataclass
class _Operation:
    body: JsonObject
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Operations:
    """All operations of the cloud, by full name (`projects/P/zones/Z/operations/operation-…`)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._operations: dict[str, _Operation] = {}
        self._ids = itertools.count(int(time.time()) * 1_000_000)

    def get(self, name: str) -> JsonObject:
        """The operation's body as of now; ApiError 404 if there is none of this name."""
        return self._find(name).body

    async def wait(self, name: str, timeout_s: float = _WAIT_S) -> JsonObject:
        """The body once the operation is done, or after so many real seconds."""
        operation = self._find(name)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(operation.done.wait(), timeout_s)
        return operation.body

    def names(self, parent: str) -> list[str]:
        """Full names of the operations below `projects/P/zones/Z` or `projects/P/locations/Z`."""
        return [name for name in self._operations if name.startswith(f"{parent}/operations/")]

    def longrunning(
        self,
        *,
        parent: str,
        metadata: JsonObject,
        response_type: str,
        work: Work,
        on_error: Cleanup | None = None,
        name: str | None = None,
    ) -> JsonObject:
        """Start a google.longrunning.Operation and return its first body.

        `work` runs in the background, takes its virtual time itself and returns the response, to which
        `response_type` (`google.cloud.tpu.v2.Node`) is added as `@type`. An ApiError that it raises, or that
        a fault rule plans, becomes the operation's error after `on_error` has undone what was begun.
        `parent` is `projects/P/locations/Z`, or "" for `operations/…`.
        """
        name = name or f"{parent}/operations/operation-{uuid.uuid4()}".removeprefix("/")
        operation = _Operation({"name": name, "metadata": dict(metadata), "done": False})
        self._operations[name] = operation
        planned = _take_planned()

        async def run() -> None:
            body: JsonObject = {"name": name, "metadata": operation.body["metadata"], "done": True}
            try:
                if planned is not None:
                    raise planned
                body["response"] = {"@type": f"type.googleapis.com/{response_type}", **(await work() or {})}
            except Exception as error:
                body["error"] = rpc_status(self._undo(name, error, on_error))
            if "createTime" in body["metadata"]:
                body["metadata"]["endTime"] = self._world.clock.rfc3339()
            operation.body = body
            operation.done.set()

        self._world.spawn(run())
        return dict(operation.body)

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
    ) -> JsonObject:
        """Start a compute#operation of `duration_s` virtual seconds and return its first body.

        `work` makes the change at the end. `target` is the resource's full name, from which the scope
        (`projects/P/zones/Z`, `…/regions/R`, `…/global`) follows unless `scope` says otherwise.
        """
        scope = scope or target.rsplit("/", 2)[0]
        op_name = f"operation-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:12]}"
        name = f"{scope}/operations/{op_name}"
        now = self._world.clock.rfc3339()
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
            "insertTime": now,
            "selfLink": compute_link(name),
        }
        kind, _, place = scope.removeprefix(f"projects/{self._world.project}/").partition("/")
        if place:
            body[kind.removesuffix("s")] = compute_link(scope)
        operation = _Operation(body)
        self._operations[name] = operation
        planned = _take_planned()

        async def run() -> None:
            clock = self._world.clock
            await clock.sleep(duration_s / 10)
            body.update(status="RUNNING", startTime=clock.rfc3339())
            await clock.sleep(duration_s * 9 / 10)
            try:
                if planned is not None:
                    raise planned
                work()
            except Exception as error:
                why = self._undo(name, error, on_error)
                body["error"] = {"errors": [{"code": why.status, "message": why.message}]}
                body.update(httpErrorStatusCode=why.code, httpErrorMessage=why.reason)
            body.update(status="DONE", progress=100, endTime=clock.rfc3339())
            operation.done.set()

        self._world.spawn(run())
        return dict(body)

    def _find(self, name: str) -> _Operation:
        operation = self._operations.get(name)
        if operation is None:
            raise not_found(name)
        return operation

    def _undo(self, name: str, error: Exception, on_error: Cleanup | None) -> ApiError:
        """Take back what a failed operation has begun; the error to show."""
        shown = error if isinstance(error, ApiError) else _INTERNAL
        if shown is not error or isinstance(error, NotEmulatedError):  # which no answer will show
            self._world.blame(f"operation {name}", error)
        if on_error is not None:
            on_error(shown)
        return shown


def _take_planned() -> ApiError | None:
    """What the fault rule plans, for the first operation that its request starts."""
    failure = planned_failure.get()
    planned_failure.set(None)
    return failure


def rpc_status(error: ApiError) -> JsonObject:
    """The google.rpc.Status of an operation that ended in this error."""
    status: JsonObject = {"code": RPC_CODES.get(error.status, 2), "message": error.message}
    if error.details:
        status["details"] = error.details
    return status


def compute_link(name: str) -> str:
    """The selfLink of a compute resource (v1; the compute service rewrites it to the version asked)."""
    return f"https://www.googleapis.com/compute/v1/{name}"
