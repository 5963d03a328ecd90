"""The server of the control socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rehearsal.cloud.control import SSH
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.faults import FaultError, Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.pods import PodGuests
from rehearsal.cloud.services.compute.disks import add_snapshot
from rehearsal.cloud.services.container.control_planes import Clusters
from rehearsal.cloud.services.tpu.nodes import Nodes
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.hosts.firewall import Firewall

Action = Callable[[JsonObject], Awaitable[JsonObject]]


@dataclass(frozen=True)
class Controls:
    """The parts of the cloud that the control socket shows and acts on.

    Attributes:
        served: returns the ids of all methods that services implement.
        dashboards: renders the project's dashboards over a window of virtual seconds.
        firewall: the hosts' packet filter, if there is one.
    """

    world: World
    iam: Iam
    faults: Faults
    requests: RequestLog
    nodes: Nodes
    quotas: Quotas
    clusters: Clusters
    pods: PodGuests
    served: Callable[[], list[str]]
    dashboards: Callable[[float], str]
    firewall: Firewall | None = None


class ControlServer:
    """The server of the control socket."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def app(self) -> web.Application:
        """Return the application for the socket."""
        app = web.Application()
        app.router.add_get("/status", self._status)
        app.router.add_get("/requests", self._log)
        app.router.add_get("/faults", self._list_faults)
        app.router.add_get("/access", self._access)
        for path, action in (
            ("/preempt", self._preempt),
            ("/maintain", self._maintain),
            ("/cut-power", self._cut_power),
            ("/clock", self._set_clock),
            ("/faults", self._add_fault),
            ("/quotas", self._set_quota),
            ("/login", self._login),
            ("/snapshots", self._snapshot),
            ("/dashboards", self._page),
            ("/clusters", self._controls.clusters.clusters),
            ("/clusters/report", self._controls.clusters.report),
            ("/clusters/account", self._controls.clusters.account),
            ("/clusters/access", self._controls.clusters.access),
            ("/clusters/scale", self._controls.clusters.scale),
            ("/clusters/lose", self._controls.clusters.lose),
            ("/clusters/disk", self._controls.clusters.disk),
            ("/clusters/join", self._controls.pods.join),
            ("/clusters/leave", self._controls.pods.leave),
        ):
            app.router.add_post(path, _posted(action))
        return app

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "clock": {
                    "now": self._controls.world.clock.rfc3339(),
                    "rate": self._controls.world.clock.rate,
                },
                "nodes": self._controls.nodes.status(),
                "control_planes": self._controls.clusters.reports(),
                "deletions": dict(self._controls.nodes.deleted),
                "requests": self._controls.requests.counts(),
                "faults": self._controls.faults.report(),
                "mistakes": list(self._controls.world.mistakes),
                "dropped": await asyncio.to_thread(self._controls.firewall.dropped)
                if self._controls.firewall
                else [],
            }
        )

    async def _log(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdigit():
            return _refusal(400, f"since: {since!r} must be a whole number")
        return web.json_response(self._controls.requests.since(int(since)))

    async def _list_faults(self, request: web.Request) -> web.Response:
        return web.json_response(self._controls.faults.report())

    async def _access(self, request: web.Request) -> web.Response:
        uses = [
            {"account": who, "permission": permission, "granted_by": granting, "times": times}
            for (who, permission, granting), times in sorted(self._controls.iam.access.items())
        ]
        return web.json_response({"served": self._controls.served(), "asked": uses})

    async def _login(self, body: JsonObject) -> JsonObject:
        for permission in SSH:
            self._controls.iam.require(body["account"], permission, self._controls.iam.project)
        return {}

    async def _preempt(self, body: JsonObject) -> JsonObject:
        await self._controls.nodes.preempt(body["node"], bool(body["notice"]))
        return {}

    async def _maintain(self, body: JsonObject) -> JsonObject:
        await self._controls.nodes.maintain(body["node"], body["ends"])
        return {}

    async def _cut_power(self, body: JsonObject) -> JsonObject:
        await self._controls.nodes.cut_power(body["host"])
        return {}

    async def _set_clock(self, body: JsonObject) -> JsonObject:
        if "jump_s" in body:
            await self._controls.world.clock.jump(float(body["jump_s"]))
        else:
            self._controls.world.clock.rate = float(body["rate"])
        return {"rate": self._controls.world.clock.rate}

    async def _add_fault(self, body: JsonObject) -> JsonObject:
        return {"id": self._controls.faults.add(body)}

    async def _set_quota(self, body: JsonObject) -> JsonObject:
        self._controls.quotas.set(body["name"], body["place"], int(body["chips"]))
        return {}

    async def _page(self, body: JsonObject) -> JsonObject:
        return {"html": self._controls.dashboards(float(body["window_s"]))}

    async def _snapshot(self, body: JsonObject) -> JsonObject:
        add_snapshot(self._controls.world, body["name"], Path(body["image"]), int(body["disk_size_gb"]))
        return {}


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
            body = await request.json()
            return web.json_response(await action(body))
        except KeyError as missing:
            return _refusal(400, f"{request.path}: the body lacks {missing}")
        except (FaultError, ValueError, TypeError) as wrong:
            return _refusal(400, f"{request.path}: {wrong}")
        except ApiError as error:
            return _refusal(error.code, error.message)

    return handle


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
