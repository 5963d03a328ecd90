"""tpu.googleapis.com, v2 and v2alpha1: changes of nodes, by operations that boot and stop machines.

Lists and look-ups are served by `entry`. Not emulated, and answered with 501: reservations, maintenance.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping

from rehearsal.cloud.collections.listing import page
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, already_exists
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.service import Call, Method
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.guestattributes import DISABLED
from rehearsal.cloud.services.tpu.node import Node
from rehearsal.cloud.services.tpu.nodes import Durations, Nodes, still
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.cloud.services.tpu.request import Requests, refusal

# updateMask paths, in both spellings of field masks.
_CHANGEABLE = {
    "dataDisks": "dataDisks",
    "data_disks": "dataDisks",
    "description": "description",
    "labels": "labels",
    "metadata": "metadata",
    "tags": "tags",
}


class TpuService:
    """The methods that change `nodes`."""

    api = "tpu"
    versions = ("v2", "v2alpha1")

    def __init__(
        self,
        world: World,
        operations: Operations,
        iam: Iam,
        nodes: Nodes,
        durations: Durations,
        quotas: Quotas,
    ) -> None:
        self._world = world
        self._operations = operations
        self._iam, self._requests = iam, Requests(world, iam)
        self._durations = durations
        self._quotas = quotas
        self._nodes = nodes
        self._ids = itertools.count(int(time.time()) * 1_000_000)

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        table: dict[str, tuple[Callable[[Call], Awaitable[JsonObject]], str]] = {
            "nodes.create": (self.create, "tpu.nodes.create"),
            # https://cloud.google.com/iam/docs/roles-permissions/tpu has no permission of its own for it;
            # getMaintenanceInfo, its sibling, requires this one. Not tried against Google.
            "nodes.getGuestAttributes": (self.get_guest_attributes, "tpu.nodes.get"),
            "nodes.patch": (self.patch, "tpu.nodes.update"),
            "nodes.delete": (self.delete, "tpu.nodes.delete"),
            "nodes.stop": (self.stop, "tpu.nodes.stop"),
            "nodes.start": (self.start, "tpu.nodes.start"),
            "operations.get": (self.get_operation, "tpu.operations.get"),
            "operations.list": (self.list_operations, "tpu.operations.list"),
        }
        return {
            f"tpu.projects.locations.{name}": Method(handler, permission, self._resource)
            for name, (handler, permission) in table.items()
        }

    def _resource(self, call: Call) -> str:
        """Return the full name that the call is about, with the project's id for its number."""
        name = call.path.get("name") or call.path["parent"]
        number = f"projects/{self._world.number}"
        if name == number or name.startswith(f"{number}/"):
            return f"projects/{self._world.project}{name[len(number) :]}"
        return name

    # Nodes

    async def create(self, call: Call) -> JsonObject:
        """nodes.create: READY when the machines' inits run; a failure leaves no node behind."""
        nodes, node = self._nodes, self._check(call)
        self._iam.make_agents("tpu", "use", 0.0)
        nodes.add(node)
        return self._start(
            call,
            "create",
            node,
            lambda: nodes.bring_up(node),
            on_error=lambda error: nodes.abandon(node),
        )

    def _check(self, call: Call) -> Node:
        """Return the node that nodes.create would make; ApiError if it refuses."""
        nodes = self._nodes
        node = self._requests.create(call, nodes.all(), next(self._ids))
        for existing in nodes.all():
            if existing.name == node.name:
                raise already_exists(node.name)
            if existing.id == node.id:
                raise NotEmulatedError(f"A second node with the machine names of {existing.name}")
        self._quotas.require(node, nodes.all())
        return node

    async def get_guest_attributes(self, call: Call) -> JsonObject:
        """nodes.getGuestAttributes: an entry per worker, in worker order.

        gcloud sends an empty id for all workers. Google doesn't document its answer where attributes are
        disabled, or a worker has nothing at the path: an error here, as in compute's API.
        """
        node, sent = self._find(call), call.body or {}
        if not node.has_guest_attributes:
            raise ApiError(400, "FAILED_PRECONDITION", DISABLED)
        hosts, desired = node.slice.hosts, [worker for worker in sent.get("workerIds") or () if worker]
        for worker in desired:
            if not worker.isascii() or not worker.isdecimal() or int(worker) >= hosts:
                raise refusal(f'invalid worker ID "{worker}": the node has workers 0 to {hosts - 1}')
        workers = [int(worker) for worker in desired] or range(hosts)
        path = sent.get("queryPath") or ""
        return {"guestAttributes": [node.guest_attributes[worker].entry(path) for worker in workers]}

    async def patch(self, call: Call) -> JsonObject:
        """nodes.patch: the fields of `updateMask`. A data disk is attached at the next boot."""
        node, sent = self._find(call), call.body or {}
        paths = [path.strip() for path in str(call.query.get("updateMask") or "").split(",") if path.strip()]
        if not paths:
            raise refusal("update mask in UpdateNode request is missing")
        for path in paths:
            if path not in _CHANGEABLE:
                raise refusal(f'update mask path "{path}" is not one of {", ".join(sorted(_CHANGEABLE))}')
        if node.state not in ("READY", "STOPPED"):
            raise _wrong_state(node, "updated")
        _require_idle(node)
        before = node.state
        changes = self._requests.mutable(sent, node.zone, node.slice.hosts)
        fields = {_CHANGEABLE[path] for path in paths}

        async def work() -> JsonObject:
            await self._world.clock.sleep(self._durations.change)
            still(node, before)
            if "dataDisks" in fields:
                self._nodes.use_disks(node, changes.get("dataDisks", []))
            for name in fields - {"dataDisks"}:
                node.body.pop(name, None)
                node.body.update({name: changes[name]} if name in changes else {})
            self._nodes.announce()
            done()
            return self._nodes.render(node)

        def done(error: ApiError | None = None) -> None:
            node.changing = False

        node.changing = True
        return self._start(call, "update", node, work, on_error=done)

    async def delete(self, call: Call) -> JsonObject:
        """nodes.delete: machines are switched off in order, within 30 s."""
        node = self._find(call)
        if node.state == "DELETING":
            raise _wrong_state(node, "deleted")
        self._nodes.deleted[node.state] += 1
        undo = _enter(node, "DELETING")
        return self._start(
            call, "delete", node, lambda: self._nodes.take_down(node), on_error=undo, empty=True
        )

    async def stop(self, call: Call) -> JsonObject:
        """nodes.stop: single-host nodes only."""
        node = self._find(call)
        if node.slice.hosts > 1:
            raise refusal("stop is not supported for TPU pods: a node of several hosts can only be deleted")
        if node.state != "READY":
            raise _wrong_state(node, "stopped")
        _require_idle(node)
        undo = _enter(node, "STOPPING")
        return self._start(call, "stop", node, lambda: self._nodes.stop(node), on_error=undo)

    async def start(self, call: Call) -> JsonObject:
        """nodes.start: of a stopped node, with the boot disk that it had."""
        node = self._find(call)
        if node.state != "STOPPED":
            raise _wrong_state(node, "started")
        _require_idle(node)
        undo = _enter(node, "STARTING")
        work = functools.partial(self._nodes.bring_up, node, "STARTING")
        return self._start(call, "start", node, work, on_error=undo)

    def _find(self, call: Call) -> Node:
        return self._nodes.get(self._resource(call))

    def _start(
        self,
        call: Call,
        verb: str,
        node: Node,
        work: Callable[[], Awaitable[JsonObject | None]],
        *,
        on_error: Callable[[ApiError], None] | None = None,
        empty: bool = False,
    ) -> JsonObject:
        """Start an operation on the node, in the types of google/cloud/tpu/v2/cloud_tpu.proto."""
        package = f"google.cloud.tpu.{call.version}"
        metadata: JsonObject = {
            "@type": f"type.googleapis.com/{package}.OperationMetadata",
            "createTime": self._world.clock.rfc3339(),
            "target": f"tpu.googleapis.com/{node.name}",
            "verb": verb,
            "cancelRequested": False,
            "apiVersion": call.version,
        }
        response = "google.protobuf.Empty" if empty else f"{package}.Node"
        return self._operations.longrunning(
            api=call.api,
            parent=node.name.split("/nodes/")[0],
            metadata=metadata,
            response_type=response,
            work=work,
            on_error=on_error,
        )

    # Operations

    async def get_operation(self, call: Call) -> JsonObject:
        """operations.get."""
        return self._operations.get(self._resource(call))

    async def list_operations(self, call: Call) -> JsonObject:
        """operations.list."""
        names = self._operations.names(call.api, self._resource(call))
        items, token = page(call, [self._operations.get(name) for name in names])
        return ({"operations": items} if items else {}) | ({"nextPageToken": token} if token else {})


def _enter(node: Node, state: str) -> Callable[[ApiError], None]:
    """Put the node into a passing state; calling the result takes it back."""
    before, node.body["state"] = node.state, state

    def undo(error: ApiError) -> None:
        if node.state == state:
            node.body["state"] = before

    return undo


def _require_idle(node: Node) -> None:
    """ApiError 409 while a patch is under way, in the words of Google's operation queue
    (https://github.com/hashicorp/terraform-provider-google/issues/24278)."""
    if node.changing:
        raise ApiError(409, "ABORTED", "unable to queue the operation", reason="aborted")


def _wrong_state(node: Node, what: str) -> ApiError:
    text = f"Cloud TPU received a bad request. the node {node.name} is {node.state} and cannot be {what}"
    return ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")
