"""The control socket: what a scenario does to the cloud that no API of Google's can do.

HTTP with JSON bodies over a Unix socket; the calls are those of docs/architecture.md. `Control` is the
client, for scripts.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import Clock
from rehearsal.cloud.door.faults import FaultError, Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.pods import PodGuests
from rehearsal.cloud.services.container.control_planes import Clusters
from rehearsal.cloud.services.tpu import TpuService
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.errors import RehearsalError
from rehearsal.hosts.firewall import Firewall

_TIMEOUT_S = 60.0
# What `gcloud … tpu-vm ssh --plain` reads, then the tunnel and OS Login ask for:
# https://cloud.google.com/iap/docs/using-tcp-forwarding, https://cloud.google.com/compute/docs/oslogin
TUNNEL, LOGIN = "iap.tunnelInstances.accessViaIAP", "compute.instances.osLogin"
SSH = ("tpu.nodes.get", "compute.projects.get", TUNNEL, LOGIN)
Action = Callable[[JsonObject], Awaitable[JsonObject]]


class ControlError(RehearsalError):
    """The cloud can't be reached by its control socket, or refuses what it is asked for."""


class ControlServer:
    """The server's side."""

    def __init__(
        self,
        clock: Clock,
        nodes: TpuService,
        faults: Faults,
        quotas: Quotas,
        requests: RequestLog,
        mistakes: Sequence[str],
        add_snapshot: Callable[[str, Path, int], None],
        iam: Iam,
        served: Callable[[], list[str]],
        clusters: Clusters,
        pods: PodGuests,
        firewall: Firewall | None = None,
        dashboards: Callable[[float], str] = lambda _: "",
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._faults = faults
        self._quotas = quotas
        self._requests = requests
        self._mistakes = mistakes
        self._add_snapshot = add_snapshot
        self._iam = iam
        self._served = served
        self._clusters = clusters
        self._pods = pods
        self._firewall = firewall
        self._dashboards = dashboards

    def app(self) -> web.Application:
        """The application for the socket."""
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
            ("/clusters", self._clusters.found),
            ("/clusters/report", self._clusters.report),
            ("/clusters/account", self._clusters.account),
            ("/clusters/access", self._clusters.access),
            ("/clusters/scale", self._clusters.scale),
            ("/clusters/lose", self._clusters.lose),
            ("/clusters/disk", self._clusters.disk),
            ("/clusters/join", self._pods.join),
            ("/clusters/leave", self._pods.leave),
        ):
            app.router.add_post(path, _posted(action))
        return app

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "clock": {"now": self._clock.rfc3339(), "rate": self._clock.rate},
                "nodes": self._nodes.nodes_status(),
                "control_planes": self._clusters.reports(),
                "deletions": self._nodes.deletions(),
                "requests": self._requests.counts(),
                "faults": self._faults.report(),
                "mistakes": list(self._mistakes),
                "dropped": await asyncio.to_thread(self._firewall.dropped) if self._firewall else [],
            }
        )

    async def _log(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdigit():
            return _refusal(400, f"since: {since!r} must be a whole number")
        return web.json_response(self._requests.since(int(since)))

    async def _list_faults(self, request: web.Request) -> web.Response:
        return web.json_response(self._faults.report())

    async def _access(self, request: web.Request) -> web.Response:
        asked = [
            {"account": who, "permission": permission, "granted_by": granting, "times": times}
            for (who, permission, granting), times in sorted(self._iam.access.items())
        ]
        return web.json_response({"served": self._served(), "asked": asked})

    async def _login(self, body: JsonObject) -> JsonObject:
        for permission in SSH:
            self._iam.require(body["account"], permission, self._iam.project)
        return {}

    async def _preempt(self, body: JsonObject) -> JsonObject:
        await self._nodes.preempt(body["node"], bool(body["notice"]))
        return {}

    async def _maintain(self, body: JsonObject) -> JsonObject:
        await self._nodes.maintain(body["node"], body["ends"])
        return {}

    async def _cut_power(self, body: JsonObject) -> JsonObject:
        await self._nodes.cut_power(body["host"])
        return {}

    async def _set_clock(self, body: JsonObject) -> JsonObject:
        if "jump_s" in body:
            await self._clock.jump(float(body["jump_s"]))
        else:
            self._clock.rate = float(body["rate"])
        return {"rate": self._clock.rate}

    async def _add_fault(self, body: JsonObject) -> JsonObject:
        return {"id": self._faults.add(body)}

    async def _set_quota(self, body: JsonObject) -> JsonObject:
        self._quotas.set(body["name"], body["place"], int(body["chips"]))
        return {}

    async def _page(self, body: JsonObject) -> JsonObject:
        return {"html": self._dashboards(float(body["window_s"]))}

    async def _snapshot(self, body: JsonObject) -> JsonObject:
        self._add_snapshot(body["name"], Path(body["image"]), int(body["disk_size_gb"]))
        return {}


def listening(path: Path) -> socket.socket:
    """A socket at `path` that takes connections as soon as it can be seen there: `bind` makes the file, and
    until `listen` whoever finds it is refused.
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
    """A handler that reads the JSON body and turns what the action refuses into an answer."""

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


class Control:
    """A client of the socket. Every call may raise ControlError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def status(self) -> JsonObject:
        """Clock, nodes, deletions, requests, faults, mistakes of the emulation's own, dropped packets."""
        answer: JsonObject = self._call("GET", "/status")
        return answer

    def access(self) -> JsonObject:
        """`served`: every method that is; `asked`: permissions, with the roles that grant each."""
        answer: JsonObject = self._call("GET", "/access")
        return answer

    def dashboards(self, window_s: float) -> str:
        """The project's dashboards as HTML, over the last so many virtual seconds."""
        return str(self._call("POST", "/dashboards", {"window_s": window_s})["html"])

    def login(self, account: str) -> None:
        """ControlError unless the account may log in to hosts through Identity-Aware Proxy."""
        self._call("POST", "/login", {"account": account})

    def preempt(self, node: str, *, notice: bool) -> None:
        """Take a node away: with notice 30 s before, or at once."""
        self._call("POST", "/preempt", {"node": node, "notice": notice})

    def maintain(self, node: str, *, ends: str) -> None:
        """Google's maintenance: REPAIRING, then `ends` (READY, TERMINATED, UNKNOWN; PENDING: a notice)."""
        self._call("POST", "/maintain", {"node": node, "ends": ends})

    def cut_power(self, host: str) -> None:
        """Cut the power of one host."""
        self._call("POST", "/cut-power", {"host": host})

    def set_clock(self, rate: float) -> None:
        """Let `rate` virtual seconds pass in a real one."""
        self._call("POST", "/clock", {"rate": rate})

    def jump(self, virtual_s: float) -> None:
        """Let so many virtual seconds pass at once."""
        self._call("POST", "/clock", {"jump_s": virtual_s})

    def add_fault(self, rule: JsonObject) -> str:
        """Put a fault rule in force (rehearsal/cloud/door/faults.py); its id."""
        return str(self._call("POST", "/faults", rule)["id"])

    def set_quota(self, name: str, place: str, chips: int) -> None:
        """Let the project have so many chips by the quota of this name in a region or zone."""
        self._call("POST", "/quotas", {"name": name, "place": place, "chips": chips})

    def faults(self) -> list[JsonObject]:
        """The rules with how often they were observed."""
        rules: list[JsonObject] = self._call("GET", "/faults")
        return rules

    def add_snapshot(self, name: str, image: Path, *, disk_size_gb: int) -> None:
        """A snapshot that exists before the scenario begins, with the content of an ext4 image."""
        self._call("POST", "/snapshots", {"name": name, "image": str(image), "disk_size_gb": disk_size_gb})

    def clusters(self, what: str = "", **body: Any) -> JsonObject:
        """Send a request of a control plane (services/container/control_planes.py), or `lose` nodes."""
        answer: JsonObject = self._call("POST", f"/clusters/{what}".rstrip("/"), body)
        return answer

    def requests(self, since: int = 0) -> JsonObject:
        """Requests from number `since` on, and the number to ask for `next`."""
        answer: JsonObject = self._call("GET", f"/requests?since={quote(str(since))}")
        return answer

    def _call(self, method: str, path: str, body: JsonObject | None = None) -> Any:
        connection = _UnixConnection(self._path)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            fix = "tpu rehearsal status says whether the world is up"
            raise ControlError(f"no emulated cloud answers on {self._path}: {error}", fix) from None
        finally:
            connection.close()
        try:
            answer = json.loads(text)
        except ValueError:
            raise ControlError(
                f"{method} {path}: {response.status} {text[:200].decode(errors='replace')}"
            ) from None
        if response.status >= 400:
            raise ControlError(f"{method} {path}: {answer['error']}")
        return answer


class _UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
