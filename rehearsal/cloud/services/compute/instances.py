"""Addresses and instances.

Behind an instance of Google's Debian 12 image runs a machine, where this world has machines (`booting`);
any other has its states only.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable

from rehearsal.cloud.collections import Change, Collection, Reference, Verb, fingerprint
from rehearsal.cloud.collections.words import exists, in_use, invalid, not_found, required
from rehearsal.cloud.core import constraints
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError
from rehearsal.cloud.core.operations import compute_link
from rehearsal.cloud.iam.iam import compute_account
from rehearsal.cloud.services.compute.booting import DEBIAN
from rehearsal.cloud.services.places import held, taken

# Documentation addresses (RFC 5737): nothing answers there, and nothing is meant to.
_EXTERNAL = ipaddress.IPv4Network("198.51.100.0/24")
_MACHINE_TYPE = re.compile(r"zones/[^/]+/machineTypes/[a-z]\w*(-[a-z0-9]+)+$")
# https://cloud.google.com/compute/docs/images/os-details: whose images anybody may use.
_PUBLIC_IMAGE = re.compile(
    r"projects/(debian|centos|rocky-linux|rhel|ubuntu-os|cos|deeplearning-platform|schedmd-slurm-public)"
    r"(-cloud|-release)?/global/images/.+"
)
_NOT_LISTED = ("aggregatedList", "delete", "get", "insert", "patch", "testIamPermissions", "update")
_SUBNETS, _USE = ("compute.subnetworks",), "compute.subnetworks.use"
_NETWORKS = (
    Reference("networkInterfaces.network", ("compute.networks",)),
    Reference("networkInterfaces.subnetwork", _SUBNETS, permission=_USE),
)


def _free(change: Change, network: ipaddress.IPv4Network, also_taken: set[str] | None = None) -> str:
    """Return the lowest free address; Google keeps the first two and the last two of a range."""
    used = taken(change.world) | (also_taken or set())
    usable = itertools.islice(network, 2, network.num_addresses - 2)
    for address in usable:
        if str(address) not in used:
            return str(address)
    text = f"IP_SPACE_EXHAUSTED: the IP space of {network} is exhausted."
    raise ApiError(403, "PERMISSION_DENIED", text, reason="ipSpaceExhausted")


def _range(change: Change, subnetwork: str) -> ipaddress.IPv4Network:
    name = change.resources.references.full(subnetwork)
    return ipaddress.IPv4Network(change.world.directory[name]["ipCidrRange"])


def _check_address(change: Change) -> None:
    body = change.body
    if change.old:
        return
    if body["addressType"] == "EXTERNAL":
        if body.get("subnetwork") or body.get("purpose"):
            raise invalid("resource.addressType", "EXTERNAL", "Has neither a subnetwork nor a purpose.")
        body.setdefault("networkTier", "PREMIUM")
        pool = _EXTERNAL
    elif body.get("subnetwork"):
        body.setdefault("purpose", "GCE_ENDPOINT")
        pool = _range(change, body["subnetwork"])
    else:
        raise NotEmulatedError("An internal address without a subnetwork")
    address = body.get("address")
    if address and (ipaddress.IPv4Address(address) not in pool or address in taken(change.world)):
        raise invalid("resource.address", address, "Specified IP address is in-use or outside of the range.")
    body["address"] = address or _free(change, pool)


def _users(change: Change) -> list[str]:
    bodies = change.world.directory.items()
    return [name for name, body in bodies if change.body["address"] in held(body)]


def _show_address(change: Change) -> None:
    if users := _users(change):
        change.body |= {"status": "IN_USE", "users": [compute_link(user) for user in users]}


def _keep_used(change: Change) -> None:
    for user in _users(change):
        raise in_use(change.shape, change.name, user)


def _reserved(change: Change, address: str) -> bool:
    """Refuse an address that the project lacks or that is in use."""
    bodies = change.world.directory.values()
    reserved = any(body.get("address") == address for body in bodies)
    return reserved and not any(address in held(body) for body in bodies)


def _check_instance(change: Change) -> None:
    """Complete a new instance: its disks, cards and addresses."""
    body, place = change.body, _place(change)
    body["tags"] = _printed(body.get("tags") or {})
    body["metadata"] = _printed(body.get("metadata") or {}) | {"kind": "compute#metadata"}
    body["fingerprint"] = ""
    if change.old:
        return
    _require_permissions(change)
    if change.call.query.get("sourceInstanceTemplate"):
        raise NotEmulatedError("An instance from a template in one request")
    body["machineType"] = _machine_type(change, body["machineType"])
    # Network interfaces: an internal address from the subnetwork, and an external one for each access config.
    own: set[str] = set()
    for number, card in enumerate(body["networkInterfaces"]):
        if not card.get("subnetwork"):
            raise invalid("resource.networkInterfaces", "", "A custom mode network needs a subnetwork.")
        subnet = change.world.directory[change.resources.references.full(card["subnetwork"])]
        card["network"], card["name"] = subnet["network"], f"nic{number}"
        pool, address = _range(change, card["subnetwork"]), card.get("networkIP")
        if address and ipaddress.IPv4Address(address) not in pool:
            why = "IP address is outside the subnetwork's range."
            raise invalid(f"resource.networkInterfaces[{number}].networkIP", address, why)
        if address and any(address in held(other) for other in change.world.directory.values()):
            text = f"IP_IN_USE_BY_ANOTHER_RESOURCE: IP '{address}' is already being used by another resource."
            raise ApiError(400, "FAILED_PRECONDITION", text, reason="resourceInUseByAnotherResource")
        card["networkIP"] = address or _free(change, pool, own)
        own.add(card["networkIP"])
        card["fingerprint"] = fingerprint(card)
        for access in card.get("accessConfigs", ()):
            constraints.require(change.world, "compute.vmExternalIpAccess", [change.name])
            if access.get("natIP") and not _reserved(change, access["natIP"]):
                why = "The specified external IP address was not found, or is in use."
                raise invalid("resource.networkInterfaces.accessConfigs.natIP", access["natIP"], why)
            access["natIP"] = access.get("natIP") or _free(change, _EXTERNAL, own)
            own.add(access["natIP"])
    for index, disk in enumerate(body["disks"]):
        _attach(change, disk, index, place)
    instances = change.runtime.instances
    if instances and change.private.get("image"):
        change.waits.append(lambda: instances.create(change.name))
    body |= {"cpuPlatform": "Unknown CPU Platform", "lastStartTimestamp": change.world.clock.rfc3339()}


def _place(change: Change) -> str:
    return "/".join(change.name.split("/")[:4])


def _machine_type(change: Change, given: str) -> str:
    """Return the link of a machine type in the instance's zone."""
    name = change.resources.references.full(given, f"projects/{change.world.project}")
    if not _MACHINE_TYPE.search(name) or not name.startswith(f"{_place(change)}/"):
        raise invalid("resource.machineType", given, "The URL is malformed.")
    return compute_link(name)


def _require_permissions(change: Change) -> None:
    """Ask for what an instance's parts need beside its own creation.

    https://cloud.google.com/compute/docs/instances/create-start-instance#permissions_required_for_this_task
    """
    sent, name, project = change.sent, change.name, f"projects/{change.world.project}"
    parts = (
        ("setMetadata", (sent.get("metadata") or {}).get("items")),
        ("setTags", (sent.get("tags") or {}).get("items")),
        ("setLabels", sent.get("labels")),
        ("setServiceAccount", sent.get("serviceAccounts")),
    )
    needed = [(f"compute.instances.{verb}", name) for verb, part in parts if part]
    if any(disk.get("initializeParams") for disk in sent["disks"]):
        needed.append(("compute.disks.create", project))
    if any(card.get("networkIP") for card in sent["networkInterfaces"]):
        needed.append(("compute.addresses.useInternal", project))
    for account in sent.get("serviceAccounts", ()):
        on = f"{project}/serviceAccounts/{account.get('email', '')}"
        if on.rpartition("/")[2] != compute_account(change.world):
            change.resources.find(on)
        needed.append(("iam.serviceAccounts.actAs", on))
    for permission, on in needed:
        change.resources.iam.require(change.call.principal, permission, on)


def _printed(value: JsonObject) -> JsonObject:
    stored = {key: item for key, item in value.items() if key not in ("fingerprint", "kind")}
    return stored | {"fingerprint": fingerprint(stored)}


def _attach(change: Change, disk: JsonObject, index: int, place: str) -> None:
    """Attach a disk: an existing one, or a boot disk made from a public image."""
    world, made = change.world, disk.pop("initializeParams", None)
    disk |= {"index": index, "type": "PERSISTENT", "mode": disk.get("mode", "READ_WRITE")}
    disk.setdefault("deviceName", f"persistent-disk-{index}")
    if not made:
        if not disk.get("source"):
            raise required(change.shape, f"disks[{index}].source")
        return
    image = change.resources.references.full(made.get("sourceImage", ""), f"projects/{world.project}")
    if made.get("sourceImage") and not _PUBLIC_IMAGE.fullmatch(image):
        raise not_found(change.shape, image)
    if disk.get("boot") and DEBIAN.fullmatch(image):
        change.private["image"] = image
    name = f"{place}/disks/{made.get('diskName') or change.id}"
    if name in world.directory:
        raise exists(change.shape, name)
    kind = (made.get("diskType") or "pd-standard").rpartition("/")[2]
    disk["source"] = compute_link(name)
    body = {
        "kind": "compute#disk",
        "id": str(next(change.resources.numbers)),
        "name": name.rpartition("/")[2],
        "sizeGb": str(made.get("diskSizeGb") or 10),
        "status": "READY",
        "type": compute_link(f"{place}/diskTypes/{kind}"),
        "zone": compute_link(place),
        "creationTimestamp": world.clock.rfc3339(),
        "selfLink": compute_link(name),
        "labelFingerprint": fingerprint({}),
        **({"sourceImage": compute_link(image)} if image else {}),
    }
    change.finish.append(lambda: world.directory.update({name: body}))


def _deleted(change: Change) -> None:
    """Delete the disks with `autoDelete`."""
    for disk in change.old.get("disks", ()):
        if disk.get("autoDelete"):
            change.resources.drop(change.resources.references.full(disk["source"]))


def _deleting(change: Change) -> None:
    """Refuse a protected instance, else switch its machine off."""
    if change.old.get("deletionProtection"):
        text = f"Invalid resource usage: 'Resource is protected against deletion: {change.name}'."
        raise ApiError(400, "FAILED_PRECONDITION", text, reason="invalidResourceUsage")
    if instances := change.runtime.instances:
        change.waits.append(lambda: instances.remove(change.name))


def _failed(change: Change, error: ApiError) -> None:
    """Remove an instance whose creation failed, with its machine."""
    change.resources.drop(change.name)
    if instances := change.runtime.instances:
        change.world.spawn(instances.remove(change.name))


def _to(state: str, passing: str, verb: str) -> Verb:
    """Return a verb that ends in a state, after the machine has done its `verb`."""

    def act(change: Change) -> None:
        if instances := change.runtime.instances:
            change.waits.append(lambda: getattr(instances, verb)(change.name))
        change.world.directory[change.name] = {**change.old, "status": passing}
        change.body["status"] = state

    return Verb(act)


def _show(change: Change) -> None:
    """Show an instance whose machine has switched itself off as Google does."""
    instances = change.runtime.instances
    if instances and change.body["status"] == "RUNNING" and instances.is_on(change.name) is False:
        change.body["status"] = "TERMINATED"


def _set(field: str) -> Callable[[Change], None]:
    """setMetadata, setTags: replaced as a whole, with the fingerprint of what is there."""

    def act(change: Change) -> None:
        if change.sent.get("fingerprint") != change.old[field]["fingerprint"]:
            text = f"Supplied fingerprint does not match current {field} fingerprint."
            raise ApiError(412, "FAILED_PRECONDITION", text, reason="conditionNotMet")
        change.body[field] = change.sent
        if instances := change.runtime.instances:
            change.finish.append(instances.announce)

    return act


def _protect(change: Change) -> None:
    """setDeletionProtection: on unless the query says otherwise."""
    change.body["deletionProtection"] = change.call.query.get("deletionProtection", True)


def _set_machine_type(change: Change) -> None:
    """setMachineType: of an instance that is stopped.

    https://cloud.google.com/compute/docs/instances/changing-machine-type-of-stopped-instance
    """
    if change.old["status"] != "TERMINATED":
        text = (
            f"Instance is in {change.old['status']} state, and its machine type changes where it is stopped."
        )
        raise ApiError(400, "FAILED_PRECONDITION", text, reason="resourceNotReady")
    change.body["machineType"] = _machine_type(change, change.sent.get("machineType") or "")


def _guest_attributes(change: Change) -> JsonObject:
    """getGuestAttributes: of a key, of a namespace or of all."""
    if change.runtime.instances is None:
        raise NotEmulatedError("Guest attributes of an instance without a machine")
    query = change.call.query
    path = str(query.get("queryPath") or query.get("variableKey") or "")
    entry = change.runtime.instances.guest_attributes(change.name, path)
    link = compute_link(f"{change.name}/getGuestAttributes/{path}")
    return {"kind": "compute#guestAttributes", "selfLink": link, **entry}


COLLECTIONS = (
    Collection(
        "compute.addresses",
        defaults={"addressType": "EXTERNAL"},
        creating={"status": "RESERVING"},
        ready={"status": "RESERVED"},
        references=(Reference("subnetwork", _SUBNETS, permission=_USE),),
        check=_check_address,
        shown=_show_address,
        deleting=_keep_used,
        seconds=3.0,
    ),
    # GKE makes them, one for each zone of a node pool: rehearsal/cloud/services/container/pools.py
    Collection("compute.instanceGroupManagers", omit=_NOT_LISTED),
    Collection(
        "compute.instances",
        required=("machineType", "disks", "networkInterfaces"),
        creating={"status": "PROVISIONING"},
        ready={"status": "RUNNING"},
        ending={"status": "STOPPING"},
        references=(
            *_NETWORKS,
            Reference("disks.source", ("compute.disks",), permission="compute.disks.use"),
        ),
        check=_check_instance,
        failed=_failed,
        shown=_show,
        deleting=_deleting,
        deleted=_deleted,
        verbs={
            "stop": _to("TERMINATED", "STOPPING", "stop"),
            "start": _to("RUNNING", "STAGING", "start"),
            "reset": _to("RUNNING", "RUNNING", "reset"),
            "setMetadata": Verb(_set("metadata")),
            "setTags": Verb(_set("tags")),
            "setDeletionProtection": Verb(_protect),
            "setMachineType": Verb(_set_machine_type),
            "getGuestAttributes": Verb(_guest_attributes),
        },
        omit=("update",),
        seconds=20.0,
        change_seconds=5.0,
    ),
)
