"""Queued resources of Cloud TPU: requests for nodes, made and deleted as nodes.create and nodes.delete do.

https://cloud.google.com/tpu/docs/queued-resources. There is no queue: every request waits for the same time.
A node that can't be made fails its request.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

from rehearsal.cloud.collections import Change, Collection
from rehearsal.cloud.collections.checks import NAME, every, not_emulated
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.services.tpu.request import refusal
from rehearsal.cloud.services.tpu.service import TpuService

_WAIT_S = 30.0  # in the queue; of the order of what is seen where chips are free, and this project's choice
_NODES = "tpu.projects.locations.nodes"


def queued_resources(tpu: TpuService, operations: Operations) -> Collection:
    """Return the collection of queued resources over these nodes.

    IAM has no permissions for them, so those for nodes are asked for; not tried against Google
    (https://cloud.google.com/iam/docs/roles-permissions/tpu).
    """
    return Collection(
        "tpu.projects.locations.queuedResources",
        permission="tpu.nodes",
        pattern=NAME,
        required=("tpu.nodeSpec",),
        seconds=2.0,
        creating={"state": {"state": "CREATING"}},
        ready={"state": {"state": "WAITING_FOR_RESOURCES"}},
        ending={"state": {"state": "DELETING"}},
        check=every(
            not_emulated(
                "reservationName", "queueingPolicy", "guaranteed", "runDuration", "provisioningModel"
            ),
            partial(_check, tpu),
        ),
        created=lambda change: change.world.spawn(_provision(tpu, operations, change)),
        shown=_show,
        deleting=partial(_delete, tpu, operations),
    )


def _nodes(change: Change, body: JsonObject) -> dict[str, JsonObject]:
    """Return the requested nodes: bodies by full name."""
    bodies: dict[str, JsonObject] = {}
    for spec in body["tpu"]["nodeSpec"]:
        slices = spec.get("multisliceParams", {})
        prefix = slices.get("nodeIdPrefix") or change.id
        ids = [f"{prefix}-{n}" for n in range(slices.get("nodeCount", 0))] or [spec.get("nodeId", "")]
        tier = {"schedulingConfig": {"spot": True}} if "spot" in body else {}
        bodies |= {f"{spec['parent']}/nodes/{id_}": tier | spec["node"] for id_ in ids}
    return bodies


def _call(change: Change, verb: str, name: str, body: JsonObject | None = None) -> Call:
    parent, _, node_id = name.partition("/nodes/")
    path, query = ({"parent": parent}, {"nodeId": node_id}) if verb == "create" else ({"name": name}, {})
    return dataclasses.replace(change.call, method_id=f"{_NODES}.{verb}", path=path, query=query, body=body)


def _check(tpu: TpuService, change: Change) -> None:
    """Raise the ApiError of nodes.create for each node of a new request."""
    if change.old:
        return
    parent = change.name.partition("/queuedResources/")[0]
    for name, body in _nodes(change, change.body).items():
        if not name.startswith(f"{parent}/"):
            raise refusal(f"the parent of node {name} must be {parent}")
        tpu.check(_call(change, "create", name, body))


async def _provision(tpu: TpuService, operations: Operations, change: Change) -> None:
    """Create the nodes of a request; it is ACTIVE when they are READY, or FAILED."""
    clock, body = change.world.clock, change.world.directory[change.name]
    await clock.sleep(_WAIT_S)
    if body is not change.world.directory.get(change.name):  # deleted
        return
    body["state"] = {"state": "PROVISIONING"}
    for name, node in _nodes(change, body).items():
        try:
            started = await tpu.create(_call(change, "create", name, node))
            error = (await operations.wait(started["name"], math.inf)).get("error")
        except ApiError as refused:
            error = {"code": refused.code, "message": refused.message}
        if error:
            body["state"] = {"state": "FAILED", "failedData": {"error": error}}
            return
        change.world.directory[name]["queuedResource"] = change.name
    body["state"] = {"state": "ACTIVE"}


def _show(change: Change) -> None:
    """SUSPENDED once a node was preempted or deleted: it isn't made again."""
    if change.body["state"]["state"] != "ACTIVE":
        return
    nodes = [change.world.directory.get(name) for name in _nodes(change, change.body)]
    if gone := [node for node in nodes if node is None or node["state"] == "PREEMPTED"]:
        who = "USER" if None in gone else "SERVICE"
        change.body["state"] = {"state": "SUSPENDED", "stateInitiator": who, "suspendedData": {}}


def _delete(tpu: TpuService, operations: Operations, change: Change) -> None:
    """Delete a request; one with nodes needs `force`, and its nodes are deleted with it."""
    nodes = [name for name in _nodes(change, change.old) if name in change.world.directory]
    if nodes and not change.call.query.get("force"):
        text = f"queued resource {change.name} has nodes: delete {', '.join(nodes)} first, or use force"
        raise ApiError(400, "FAILED_PRECONDITION", f"Cloud TPU received a bad request. {text}")

    async def delete(name: str) -> None:
        started = await tpu.delete(_call(change, "delete", name))
        await operations.wait(started["name"], math.inf)

    change.waits.extend(partial(delete, name) for name in nodes)
