"""The server of the control socket."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rehearsal.cloud.control import ACT_AS, SSH, SSH_TO_INSTANCE
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.faults import FaultError, Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.machines import Machines
from rehearsal.cloud.machines.pods import PodGuests
from rehearsal.cloud.services.compute.booting import Instances
from rehearsal.cloud.services.compute.disks import add_snapshot
from rehearsal.cloud.services.container.control_planes import Clusters
from rehearsal.cloud.services.tpu.nodes import Nodes
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.hosts.firewall import Firewall

Action = Callable[[JsonObject], Awaitable[JsonObject | None] | JsonObject | None]
"""A change by the body of a request; the answer, or None for an empty one."""


@dataclass(frozen=True)
class Controls:
    """The parts of the cloud that the control socket shows and acts on.

    Attributes:
        served: returns the ids of all methods that services implement.
        firewall: the hosts' packet filter, if there is one.
    """

    world: World
    iam: Iam
    faults: Faults
    requests: RequestLog
    machines: Machines
    nodes: Nodes
    instances: Instances
    quotas: Quotas
    clusters: Clusters
    pods: PodGuests
    served: Callable[[], list[str]]
    firewall: Firewall | None = None


class ControlServer:
    """The server of the control socket."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def app(self) -> web.Application:
        """Return the application for the socket."""
        controls = self._controls
        nodes, clusters, pods, faults = controls.nodes, controls.clusters, controls.pods, controls.faults
        app = web.Application()
        app.router.add_get("/status", self._status)
        app.router.add_get("/requests", self._log)
        app.router.add_get("/faults", self._list_faults)
        app.router.add_get("/access", self._access)
        actions: dict[str, Action] = {
            "/preempt": lambda body: nodes.preempt(body["node"], bool(body["notice"])),
            "/maintain": lambda body: nodes.maintain(body["node"], body["ends"]),
            "/cut-power": lambda body: controls.machines.pull(body["host"]),
            "/clock": self._set_clock,
            "/faults": lambda body: {"id": faults.add(body)},
            "/quotas": lambda body: controls.quotas.set(body["name"], body["place"], int(body["chips"])),
            "/login": self._login,
            "/snapshots": self._snapshot,
            "/clusters": clusters.clusters,
            "/clusters/report": clusters.report,
            "/clusters/account": clusters.account,
            "/clusters/access": clusters.access,
            "/clusters/scale": clusters.scale,
            "/clusters/lose": clusters.lose,
            "/clusters/disk": clusters.disk,
            "/clusters/pull": clusters.pull,
            "/clusters/join": pods.join,
            "/clusters/leave": pods.leave,
        }
        for path, action in actions.items():
            app.router.add_post(path, _posted(action))
        return app

    async def _status(self, request: web.Request) -> web.Response:
        controls = self._controls
        dropped = await asyncio.to_thread(controls.firewall.dropped) if controls.firewall else []
        return web.json_response(
            {
                "clock": {"now": controls.world.clock.rfc3339(), "rate": controls.world.clock.rate},
                "nodes": controls.nodes.status(),
                "instances": controls.instances.status(),
                "control_planes": controls.clusters.reports(),
                "deletions": dict(controls.nodes.deleted),
                "requests": controls.requests.counts(),
                "faults": controls.faults.report(),
                "mistakes": list(controls.world.mistakes),
                "dropped": dropped,
            }
        )

    async def _log(self, request: web.Request) -> web.Response:
        return web.json_response(self._controls.requests.since(int(request.query.get("since", 0))))

    async def _list_faults(self, request: web.Request) -> web.Response:
        return web.json_response(self._controls.faults.report())

    async def _access(self, request: web.Request) -> web.Response:
        uses = [
            {"account": who, "permission": permission, "granted_by": granting, "times": times}
            for (who, permission, granting), times in sorted(self._controls.iam.access.items())
        ]
        return web.json_response({"served": self._controls.served(), "asked": uses})

    def _login(self, body: JsonObject) -> None:
        iam, instances = self._controls.iam, self._controls.instances.status()
        own = next((item for item in instances if item["name"] == body.get("host")), None)
        needed = [(permission, iam.project) for permission in SSH]
        if own is not None:
            needed = [(permission, own["resource"]) for permission in SSH_TO_INSTANCE]
            needed.append(("compute.projects.get", iam.project))
            if own["account"]:
                needed.append((ACT_AS, f"{iam.project}/serviceAccounts/{own['account']}"))
        for permission, resource in needed:
            iam.require(body["account"], permission, resource)

    async def _set_clock(self, body: JsonObject) -> JsonObject:
        clock = self._controls.world.clock
        if "jump_s" in body:
            await clock.jump(float(body["jump_s"]))
        else:
            clock.rate = float(body["rate"])
        return {"rate": clock.rate}

    def _snapshot(self, body: JsonObject) -> None:
        add_snapshot(self._controls.world, body["name"], Path(body["image"]), int(body["disk_size_gb"]))


def listening(path: Path) -> socket.socket:
    """Return a socket at `path` that accepts connections as soon as the file exists.

    `bind` creates the file, and clients are refused until `listen`: the file is renamed after that.
    """
    unseen = path.with_name(".unheard")  # no longer than control.sock: a socket's path has little room
    unseen.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(unseen))
        listener.listen(128)
        unseen.rename(path)
    except OSError:
        listener.close()
        raise
    return listener


def _posted(action: Action) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that reads the JSON body and turns errors of the action into answers."""

    async def handle(request: web.Request) -> web.Response:
        try:
            answer = action(await request.json())
            if inspect.isawaitable(answer):
                answer = await answer
            return web.json_response(answer or {})
        except KeyError as missing:
            return _refusal(400, f"{request.path}: the body lacks {missing}")
        except (FaultError, ValueError, TypeError) as wrong:
            return _refusal(400, f"{request.path}: {wrong}")
        except ApiError as error:
            return _refusal(error.code, error.message)

    return handle


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
