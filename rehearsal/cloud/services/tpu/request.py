"""From the body of nodes.create to a node, or to the refusal that Google would send."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator

from google_facts.scopes import EVERYTHING
from rehearsal.cloud.collections.checks import NAME, wrong_labels
from rehearsal.cloud.collections.references import full_name
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, not_found
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam, compute_account
from rehearsal.cloud.services import places
from rehearsal.cloud.services.places import Place
from rehearsal.cloud.services.tpu.catalog import (
    ACCELERATOR,
    DISK_TYPES,
    RUNTIME_VERSIONS,
    ZONES,
    Slice,
    find,
    find_topology,
)
from rehearsal.cloud.services.tpu.node import ENDPOINT_PORT, Node

_METADATA_KEY = re.compile(r"[-_a-zA-Z0-9]{1,128}")
# https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations
_METADATA_VALUE_BYTES = 256 * 1024
_METADATA_BYTES = 512 * 1024
# Node fields that clients may send and that change machines in ways which are not emulated.
_NOT_EMULATED = ("autocheckpointEnabled", "bootDiskConfig", "cidrBlock", "networkConfigs")
# Documentation addresses (RFC 5737): nothing answers there, and nothing is meant to.
_EXTERNAL = ipaddress.IPv4Network("203.0.113.0/24")


class Requests:
    """Checks requests against the world as it is."""

    def __init__(self, world: World, iam: Iam) -> None:
        self._world = world
        self._iam = iam

    def zone(self, name: str) -> str:
        """Return the zone of `projects/P/locations/Z[/…]`; ApiError 404 if it doesn't exist."""
        zone = name.split("/")[3]
        if f"projects/{self._world.project}/zones/{zone}" not in self._world.directory:
            raise not_found(f"projects/{self._world.project}/locations/{zone}")
        return zone

    def create(self, call: Call, taken: list[Node], number: int) -> Node:
        """Return the requested node, CREATING. `taken` are the existing ones; `number` becomes its id."""
        sent = call.body or {}
        zone = self.zone(call.path["parent"])
        node_id = str(call.query.get("nodeId") or "")
        if not re.fullmatch(NAME, node_id):
            raise refusal(
                f'invalid nodeId "{node_id}": it must start with a lower-case letter, followed by up to 62 '
                "lower-case letters, digits or hyphens, and not end with a hyphen"
            )
        for name in _NOT_EMULATED:
            if sent.get(name):
                raise NotEmulatedError(f"Node.{name}")
        piece = _slice(sent, zone)
        _check_runtime(sent.get("runtimeVersion", ""))
        place = self._place(sent.get("networkConfig") or {}, zone)
        for taken_place in (node.place for node in taken):
            if taken_place.network != place.network and taken_place.cidr.overlaps(place.cidr):
                raise NotEmulatedError("A node in a network whose ranges overlap those of another's node")
        addresses = _free_addresses(place, places.taken(self._world), piece.hosts)
        name = f"projects/{self._world.project}/locations/{zone}/nodes/{node_id}"
        body: JsonObject = {
            **{key: sent[key] for key in ("shieldedInstanceConfig",) if key in sent},
            **self.mutable(sent, zone, piece.hosts),
            "name": name,
            "acceleratorType": piece.accelerator_type,
            "acceleratorConfig": {"type": ACCELERATOR, "topology": piece.topology},
            "runtimeVersion": sent["runtimeVersion"],
            "networkConfig": {
                **(sent.get("networkConfig") or {}),
                "network": place.network,
                "subnetwork": place.subnetwork,
            },
            "schedulingConfig": _scheduling(sent.get("schedulingConfig") or {}),
            "serviceAccount": self._service_account(call.principal, sent.get("serviceAccount") or {}),
            "networkEndpoints": _endpoints(sent, addresses, taken),
            "state": "CREATING",
            "apiVersion": "V2_ALPHA1",
            "createTime": self._world.clock.rfc3339(),
            "id": str(number),
            "multisliceNode": False,
        }
        return Node(name, body, piece, place, addresses)

    def mutable(self, sent: JsonObject, zone: str, hosts: int) -> JsonObject:
        """Return the fields that nodes.patch may change, checked, in canonical form, without empty ones."""
        for key, value, _ in wrong_labels(sent.get("labels") or {}):
            raise refusal(f'invalid label "{key}": "{value}"')
        for tag in sent.get("tags") or ():
            if not re.fullmatch(NAME, tag):
                raise refusal(f'invalid network tag "{tag}"')
        _check_metadata(sent.get("metadata") or {})
        disks = [self._disk(disk, zone, hosts) for disk in sent.get("dataDisks") or ()]
        fields: JsonObject = {
            "description": sent.get("description"),
            "labels": sent.get("labels"),
            "metadata": sent.get("metadata"),
            "tags": sent.get("tags"),
            "dataDisks": disks,
        }
        return {key: value for key, value in fields.items() if value}

    def _place(self, sent: JsonObject, zone: str) -> Place:
        """Network and subnetwork by full names, partial names or links."""
        project, region = f"projects/{self._world.project}", zone.rpartition("-")[0]
        network = self._full_name(sent.get("network") or "default", f"{project}/global/networks")
        subnetwork = self._full_name(
            sent.get("subnetwork") or "default", f"{project}/regions/{region}/subnetworks"
        )
        subnet_body = self._world.require(subnetwork)
        network_body = self._world.require(self._parent(subnet_body) if not sent.get("network") else network)
        network = full_name(self._world, network_body["selfLink"])
        if self._parent(subnet_body) != network:
            raise refusal(f"subnetwork {subnetwork} is not in network {network}")
        if subnetwork.split("/")[3] != region:
            raise refusal(f"subnetwork {subnetwork} is not in region {region} of the node's zone {zone}")
        if not sent.get("enableExternalIps") and not subnet_body.get("privateIpGoogleAccess"):
            raise refusal(
                f"subnetwork {subnetwork} must have Private Google Access enabled, because the node has no "
                "external IP addresses"
            )
        return places.place(self._world, subnetwork)

    def _parent(self, subnet: JsonObject) -> str:
        return full_name(self._world, subnet["network"])

    def _full_name(self, text: str, collection: str) -> str:
        relative = f"projects/{self._world.project}" if "/" in text else collection
        return full_name(self._world, text, relative)

    def _disk(self, sent: JsonObject, zone: str, hosts: int) -> JsonObject:
        """Check a data disk, which must exist in the zone and allow the requested mode."""
        name = self._full_name(
            sent.get("sourceDisk") or "", f"projects/{self._world.project}/zones/{zone}/disks"
        )
        body = self._world.require(name)
        if name.split("/")[3] != zone:
            raise refusal(f"disk {name} is not in the node's zone {zone}")
        kind = body["type"].rsplit("/", 1)[-1]
        if kind not in DISK_TYPES:
            allowed = " and ".join(sorted(DISK_TYPES))
            raise refusal(f"disk {name} is of type {kind}; v6e supports {allowed}")
        if body.get("status") != "READY":
            raise ApiError(400, "FAILED_PRECONDITION", f"The resource '{name}' is not ready")
        if sent.get("mode", "READ_WRITE") != "READ_ONLY":
            if hosts > 1:
                raise refusal(f"disk {name}: a multi-host node attaches disks in READ_ONLY mode only")
            raise NotEmulatedError("A data disk in READ_WRITE mode")
        if hosts > 1 and body.get("accessMode") != "READ_ONLY_MANY":
            mode = body.get("accessMode", "READ_WRITE_SINGLE")
            raise refusal(f"disk {name} has access mode {mode}; many hosts need READ_ONLY_MANY")
        if name not in self._world.images:
            raise NotEmulatedError(f"A data disk without data ({name})")
        return {**sent, "sourceDisk": name}

    def _service_account(self, principal: str, sent: JsonObject) -> JsonObject:
        """Return the account, which must exist and which the caller must be allowed to act as."""
        default = compute_account(self._world)
        email = sent.get("email") or default
        name = f"projects/{self._world.project}/serviceAccounts/{email}"
        if email != default:
            self._world.require(name)
        self._iam.require(principal, "iam.serviceAccounts.actAs", name)
        return {"email": email, "scope": sent.get("scope") or [EVERYTHING]}


def refusal(why: str) -> ApiError:
    """400 in the words that the TPU API begins with."""
    return ApiError(400, "INVALID_ARGUMENT", f"Cloud TPU received a bad request. {why}", reason="badRequest")


def _slice(sent: JsonObject, zone: str) -> Slice:
    config = sent.get("acceleratorConfig") or {}
    kind = sent.get("acceleratorType") or ""
    if bool(kind) == bool(config):
        raise refusal("exactly one of acceleratorType and acceleratorConfig must be set")
    if config:
        known = find_topology(config.get("topology", "")) if config.get("type") == ACCELERATOR else None
        shown = f"{config.get('type')} with topology {config.get('topology')}"
    else:
        known, shown = find(kind), f'"{kind}"'
    if known is None or zone not in ZONES:
        text = f'Cloud TPU received an invalid AcceleratorType, {shown} for zone "{zone}".'
        raise ApiError(400, "INVALID_ARGUMENT", text, reason="badRequest")
    return known


def _check_runtime(version: str) -> None:
    if version not in RUNTIME_VERSIONS:
        offered = ", ".join(RUNTIME_VERSIONS)
        raise refusal(f'runtime version "{version}" is not one of v6e: {offered}')


def _scheduling(sent: JsonObject) -> JsonObject:
    chosen = [key for key in ("preemptible", "reserved", "spot") if sent.get(key)]
    if len(chosen) > 1:
        raise refusal(f"schedulingConfig: {' and '.join(chosen)} exclude each other")
    return sent


def _check_metadata(metadata: dict[str, str]) -> None:
    for key, value in metadata.items():
        if not _METADATA_KEY.fullmatch(key):
            raise refusal(f'invalid metadata key "{key}"')
        size = len(value.encode())
        if size > _METADATA_VALUE_BYTES:
            raise refusal(f'metadata "{key}" has {size} bytes; at most {_METADATA_VALUE_BYTES} are allowed')
    total = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if total > _METADATA_BYTES:
        raise refusal(f"metadata has {total} bytes; at most {_METADATA_BYTES} are allowed")


def _free_addresses(place: Place, used: set[str], count: int) -> list[str]:
    """Return the lowest free addresses. Google keeps four: network, gateway, the last but one, broadcast."""
    usable = range(2, place.cidr.num_addresses - 2)
    candidates: Iterator[str] = (str(place.cidr[index]) for index in usable)
    free = list(itertools.islice((address for address in candidates if address not in used), count))
    if len(free) < count:
        text = f"IP_SPACE_EXHAUSTED: the IP space of '{place.subnetwork}' is exhausted."
        raise ApiError(429, "RESOURCE_EXHAUSTED", text)
    return free


def _endpoints(sent: JsonObject, addresses: list[str], taken: list[Node]) -> list[JsonObject]:
    """Return an endpoint for each worker, with an external address if requested."""
    endpoints: list[JsonObject] = [
        {"ipAddress": address, "port": ENDPOINT_PORT, "accessConfig": {}} for address in addresses
    ]
    if (sent.get("networkConfig") or {}).get("enableExternalIps"):
        used = {
            endpoint["accessConfig"].get("externalIp")
            for node in taken
            for endpoint in node.body["networkEndpoints"]
        }
        free = (str(address) for address in _EXTERNAL.hosts() if str(address) not in used)
        for endpoint in endpoints:
            external = next(free, None)
            if external is None:
                text = "Quota 'IN_USE_ADDRESSES' exceeded."
                raise ApiError(429, "RESOURCE_EXHAUSTED", text, reason="quotaExceeded")
            endpoint["accessConfig"] = {"externalIp": external}
    return endpoints
