"""The metadata server of each machine, distinguished by the client's address.

Behaves as https://cloud.google.com/compute/docs/metadata/querying-metadata describes, and holds the keys of a
TPU VM. Identity tokens (`identity?audience=`) are missing: no client here could verify Google's signature.
Access scopes decide what a cluster calls a token's account (google_facts/scopes.toml), and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, NotEmulatedError
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.doorway import Doorway, Passage
from rehearsal.cloud.door.faults import Fault
from rehearsal.cloud.iam.iam import Iam, Token, denied
from rehearsal.cloud.machines.guestattributes import DISABLED, GuestAttributes

_ROOT = "/computeMetadata/v1/"
_GUEST_ATTRIBUTES = f"{_ROOT}instance/guest-attributes/"
_FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
# A token is handed out again until so little is left of it: five minutes of Google's hour.
# https://cloud.google.com/compute/docs/access/authenticate-workloads#applications
_TOKEN_RESERVE = 300 / 3600
_GET_TOKEN = "iam.serviceAccounts.getAccessToken"
_HOST = "metadata.google.internal"
# Of an instance's entries, those that Google's server has and this one hasn't
# (https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys).
_LEFT_OUT = frozenset(
    {
        *("cpu-platform", "description", "disks", "gce-workload-certificates", "image", "licenses"),
        *("partner-attributes", "physical_host_topology", "remaining-cpu-time", "shutdown-details"),
        *("upcoming-maintenance", "virtual-clock"),
    }
)
_NOT_IN_LISTINGS = ("identity", "token")

_FORBIDDEN = """<!DOCTYPE html>
<html lang=en>
  <title>Error 403 (Forbidden)!!1</title>
  <p><b>403.</b> <ins>That's an error.</ins>
  <p>Your client does not have permission to get URL <code>{path}</code> from this server. {why}
"""
_NOT_FOUND = """<!DOCTYPE html>
<html lang=en>
  <title>Error 404 (Not Found)!!1</title>
  <p><b>404.</b> <ins>That's an error.</ins>
  <p>The requested URL <code>{path}</code> was not found on this server.
"""

Value = str | int | list[str]
Tree = dict[str, "Tree | Value"]


@dataclass(frozen=True)
class Guest:
    """A machine, as its metadata server knows it.

    `external_address` may be empty; `mtu` is in bytes; `guest_attributes` is None where they are disabled;
    `maintenance` is the API's UpcomingMaintenance, empty without one. `principal`: of a pod, who asks IAM for
    the tokens of `service_account`, or gets its own where that is none. `serverless`: no machine, and its
    tokens have the scopes that a request names. `service_account` is empty where there is none.
    """

    name: str
    instance_id: int
    zone: str
    machine_type: str
    address: str
    external_address: str
    gateway: str
    netmask: str
    mac: str
    mtu: int
    network: str
    attributes: dict[str, str]
    tags: tuple[str, ...]
    preempted: bool
    maintenance: dict[str, str | bool]
    revocable: bool
    service_account: str
    scopes: tuple[str, ...]
    guest_attributes: GuestAttributes | None
    principal: str = ""
    serverless: bool = False
    restarts: bool = False
    on_maintenance: str = "TERMINATE"


class Guests(Protocol):
    """Look-up of machines."""

    def guest(self, address: str) -> Guest | None:
        """Return the machine with this internal address."""

    async def changed(self) -> None:
        """Return when the metadata of a guest have changed."""


class MetadataServer:
    """Serves all machines; bind it to 169.254.169.254, port 80."""

    def __init__(self, world: World, guests: Guests, iam: Iam, doorway: Doorway) -> None:
        self._world = world
        self._doorway = doorway
        self._guests = guests
        self._iam = iam
        self._tokens: dict[tuple[str, tuple[str, ...]], Token] = {}

    def app(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        address = request.remote or ""
        guest = self._guests.guest(address)
        passage = Passage(
            method_id=f"metadata.{request.path.strip('/')}",
            http_method=request.method,
            host=_HOST,
            path=request.path,
            principal=guest.service_account if guest else "",
            address=address,
            query=request.query_string,
        )
        return await self._doorway.http(
            request, passage, lambda: self._serve(request, guest, passage), _refused
        )

    async def _serve(self, request: web.Request, guest: Guest | None, passage: Passage) -> web.Response:
        if guest is None:
            return _page(404, _NOT_FOUND, request.path)
        if "X-Forwarded-For" in request.headers:
            return _page(403, _FORBIDDEN, request.path, "Requests with X-Forwarded-For are refused.")
        if request.path == "/":  # clients look here whether this is a machine of Google's
            return _text("computeMetadata/\n")
        if request.headers.get("Metadata-Flavor") != "Google":
            return _page(403, _FORBIDDEN, request.path, "Missing Metadata-Flavor:Google header.")
        own = request.path.startswith(_GUEST_ATTRIBUTES)
        if request.method not in (("GET", "HEAD", "PUT", "DELETE") if own else ("GET", "HEAD")):
            return web.Response(status=405, headers={**_FLAVOR, "Allow": "GET, HEAD"})
        if not request.path.startswith(_ROOT):
            return _page(404, _NOT_FOUND, request.path)
        passage.validated = True
        return await (_guest_attributes(request, guest) if own else self._answer(request, guest))

    async def _answer(self, request: web.Request, guest: Guest) -> web.Response:
        path = request.path.removeprefix(_ROOT)
        parts = path.rstrip("/").split("/") if path else []
        if _is_secret(parts, "token"):
            return self._token(guest, parts[2], request.query.get("scopes", ""))
        if _is_secret(parts, "identity"):
            raise NotEmulatedError("An identity token")
        if parts == ["instance", "upcoming-maintenance"] and "wait_for_change" not in request.query:
            return _text(json.dumps(_upcoming_maintenance(guest)), "application/json")
        if parts[:1] == ["instance"] and parts[1:2] and parts[1] in _LEFT_OUT:
            raise NotEmulatedError(f"Metadata key {path}")
        value = self._find(guest, parts)
        if value is None:
            return _page(404, _NOT_FOUND, request.path)
        if isinstance(value, dict) and path and not path.endswith("/"):
            return _moved(request)
        if request.query.get("wait_for_change", "").lower() == "true":
            value = await self._wait(request, guest, parts, value)
            if value is None:
                return _page(404, _NOT_FOUND, request.path)
        return _render(value, request, verbatim=parts[-1:] == ["attributes"])

    def _find(self, guest: Guest, parts: list[str]) -> Tree | Value | None:
        value: Tree | Value = self._tree(guest)
        for part in parts:
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value

    async def _wait(
        self, request: web.Request, guest: Guest, parts: list[str], value: Tree | Value
    ) -> Tree | Value | None:
        """Return the value once it differs from `last_etag` (or the current one), or after `timeout_sec`."""
        last = request.query.get("last_etag") or _etag(value)
        limit = request.query.get("timeout_sec", "")
        current: Tree | Value | None = value
        try:
            async with asyncio.timeout(float(limit) if limit.isdigit() else None):
                while current is not None and _etag(current) == last:
                    await self._guests.changed()
                    now = self._guests.guest(guest.address)
                    current = self._find(now, parts) if now is not None else None
        except TimeoutError:
            pass
        return current

    def _token(self, guest: Guest, alias: str, named: str) -> web.Response:
        if not guest.service_account or alias not in ("default", guest.service_account):
            return _page(404, _NOT_FOUND, f"{_ROOT}instance/service-accounts/{alias}/token")
        who = guest.service_account
        if guest.principal and not who.endswith(".gserviceaccount.com"):
            who = guest.principal
        elif guest.principal:
            account = f"{self._iam.project}/serviceAccounts/{who}"
            if not self._iam.allowed(guest.principal, _GET_TOKEN, account):
                text = "Unable to generate access token; IAM returned 403 Forbidden: "
                raise ApiError(403, "PERMISSION_DENIED", text + denied("", _GET_TOKEN, account).message)
        scopes = tuple(named.split(",")) if named and guest.serverless else guest.scopes
        token = self._tokens.get((guest.address, scopes))
        reserve_s = _TOKEN_RESERVE * self._iam.token_lifetime_s
        fresh = token is not None and self._iam.left_s(token) > reserve_s
        if token is None or not fresh or token.principal != who:
            token = self._tokens[guest.address, scopes] = self._iam.mint(who, scopes=scopes)
        answer = {"access_token": token.value, "expires_in": self._iam.left_s(token), "token_type": "Bearer"}
        return _text(json.dumps(answer), "application/json")

    def _tree(self, guest: Guest) -> Tree:
        project = f"projects/{self._world.number}"
        account: Tree = {
            "aliases": ["default"],
            "email": guest.service_account,
            "identity": "",
            "scopes": list(guest.scopes),
            "token": "",
        }
        accounts = ("default", guest.service_account) if guest.service_account else ()
        external: Tree = {"external-ip": guest.external_address, "type": "ONE_TO_ONE_NAT"}
        interface: Tree = {
            "access-configs": {"0": external} if guest.external_address else {},
            "gateway": guest.gateway,
            "ip": guest.address,
            "mac": guest.mac,
            "mtu": guest.mtu,
            "network": f"{project}/networks/{guest.network}",
            "subnetmask": guest.netmask,
        }
        instance: Tree = {
            "attributes": dict(guest.attributes),
            "guest-attributes": {},  # shown only by their own path
            "hostname": f"{guest.name}.{guest.zone}.c.{self._world.project}.internal",
            "id": guest.instance_id,
            "machine-type": f"{project}/machineTypes/{guest.machine_type}",
            "maintenance-event": _maintenance_event(guest),
            "name": guest.name,
            "network-interfaces": {"0": interface},
            "preempted": "TRUE" if guest.preempted else "FALSE",
            "scheduling": {
                "automatic-restart": "TRUE" if guest.restarts else "FALSE",
                "on-host-maintenance": guest.on_maintenance,
                "preemptible": "TRUE" if guest.revocable else "FALSE",
            },
            "service-accounts": dict.fromkeys(accounts, account),
            "tags": list(guest.tags),
            "zone": f"{project}/zones/{guest.zone}",
        }
        return {
            "instance": instance,
            "project": {
                "attributes": {},
                "numeric-project-id": int(self._world.number),
                "project-id": self._world.project,
            },
            # Clients use either spelling.
            "universe": {"universe-domain": "googleapis.com", "universe_domain": "googleapis.com"},
        }


def _maintenance_event(guest: Guest) -> str:
    """https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice: hosts with TPUs end."""
    ongoing = guest.maintenance.get("maintenanceStatus") == "ONGOING"
    return "TERMINATE_ON_HOST_MAINTENANCE" if ongoing else "NONE"


def _upcoming_maintenance(guest: Guest) -> dict[str, str]:
    """https://cloud.google.com/tpu/docs/view-maintenance-notifications"""
    if not guest.maintenance:
        return {"error": "no notifications have been received yet, try again later"}
    return {
        "maintenanceType" if key == "type" else key: str(value).upper() if isinstance(value, bool) else value
        for key, value in guest.maintenance.items()
    }


async def _guest_attributes(request: web.Request, guest: Guest) -> web.Response:
    """Serve the attributes that this machine has written."""
    own, path = guest.guest_attributes, request.path.removeprefix(_GUEST_ATTRIBUTES)
    if own is None:
        return web.Response(status=403, text=DISABLED, headers=_FLAVOR)
    parts = path.rstrip("/").split("/") if path else []
    if request.method in ("PUT", "DELETE"):
        if len(parts) != 2:
            return _page(404, _NOT_FOUND, request.path)
        if request.method == "PUT":
            own.write(parts[0], parts[1], (await request.read()).decode(errors="replace"))
        elif not own.delete(parts[0], parts[1]):
            return _page(404, _NOT_FOUND, request.path)
        return _text("")
    value = own.read(parts)
    if value is None:
        return _page(404, _NOT_FOUND, request.path)
    if isinstance(value, dict) and path and not path.endswith("/"):
        return _moved(request)
    return _render(value, request, verbatim=True)


def _moved(request: web.Request) -> web.Response:
    """Redirect to the same path with a slash, as of every folder."""
    return web.Response(status=301, headers={**_FLAVOR, "Location": f"{request.path}/{_query(request)}"})


def _is_secret(parts: list[str], kind: str) -> bool:
    return len(parts) == 4 and parts[:2] == ["instance", "service-accounts"] and parts[3] == kind


def _query(request: web.Request) -> str:
    return f"?{request.query_string}" if request.query_string else ""


def _render(value: Tree | Value, request: web.Request, *, verbatim: bool) -> web.Response:
    """Render a value as text, or as JSON if requested or if it is a whole branch."""
    etag = _etag(value)
    recursive = request.query.get("recursive", "").lower() == "true"
    form = request.query.get("alt", "json" if recursive and isinstance(value, dict) else "text")
    if form == "json" and (recursive or not isinstance(value, dict)):
        return _text(json.dumps(_as_json(value, verbatim=verbatim)), "application/json", etag)
    if isinstance(value, dict):
        lines = _flat(value) if recursive else _listing(value)
        return _text("".join(f"{line}\n" for line in lines), etag=etag)
    return _text("".join(f"{item}\n" for item in value) if isinstance(value, list) else str(value), etag=etag)


def _listing(tree: Tree) -> Iterator[str]:
    for key, value in sorted(tree.items()):
        yield f"{key}/" if isinstance(value, dict) else key


def _flat(tree: Tree, prefix: str = "") -> Iterator[str]:
    """`path value` for each leaf, which is the text form of a recursive answer."""
    for key, value in sorted(tree.items()):
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        elif key not in _NOT_IN_LISTINGS:
            yield f"{prefix}{key} {' '.join(value) if isinstance(value, list) else value}"


def _as_json(value: Tree | Value, *, verbatim: bool = False) -> object:
    """Convert keys to camelCase, but for those of attributes; numbered folders become lists."""
    if not isinstance(value, dict):
        return value
    if "0" in value:
        return [_as_json(item) for item in value.values()]
    answer: dict[str, object] = {}
    for key, item in value.items():
        if key in _NOT_IN_LISTINGS and not verbatim:
            continue
        if key == "access-configs" and item == {}:
            answer["accessConfigs"] = []
            continue
        shown = key if verbatim or "@" in key else _camel(key)
        answer[shown] = _as_json(item, verbatim=key == "attributes")
    return answer


def _camel(key: str) -> str:
    first, *rest = key.replace("_", "-").split("-")
    return first + "".join(word.capitalize() for word in rest)


def _etag(value: Tree | Value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _text(body: str, kind: str = "application/text", etag: str = "") -> web.Response:
    headers = {**_FLAVOR, "Content-Type": kind, **({"ETag": etag} if etag else {})}
    return web.Response(body=body.encode(), headers=headers)


def _refused(error: ApiError, _fault: Fault | None) -> web.Response:
    return web.Response(status=error.code, text=error.message, headers=_FLAVOR)


def _page(status: int, template: str, path: str, why: str = "") -> web.Response:
    headers = {**_FLAVOR, "Content-Type": "text/html; charset=UTF-8"}
    return web.Response(status=status, body=template.format(path=path, why=why).encode(), headers=headers)
