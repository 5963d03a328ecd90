"""Disks and snapshots."""

from __future__ import annotations

from pathlib import Path

from rehearsal.cloud.collections import KEEP, Change, Collection, Reference, Verb, fingerprint
from rehearsal.cloud.collections.references import LINK
from rehearsal.cloud.collections.words import invalid, not_found
from rehearsal.cloud.collections.writes import insert
from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.operations import compute_link
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.compute.locations import DISK_TYPES, DiskType

_CHANGE_S = 3.0
# Hyperdisk ML's throughput is bounded by its size: at most 1,600 MiB/s per GiB, at least 0.12
# (https://cloud.google.com/compute/docs/disks/hd-types/hyperdisk-ml).
_ML_MIB_S_PER_GIB = (0.12, 1600)
# How often throughput may change: the provider's documentation of `provisioned_throughput`. Google's sentence
# isn't recorded.
_BETWEEN_CHANGES_S = 4 * 3600.0
_SNAPSHOTS = "compute.snapshots"


def _check_disk(change: Change) -> None:
    """Complete a new disk from its type and snapshot; ApiError for what the type doesn't allow."""
    body = change.body
    if not change.old:
        _from_source(change)
    kind = body["type"].rpartition("/")[2]
    _check_limits(body, kind, DISK_TYPES[kind])
    if body.get("accessMode") != change.old.get("accessMode") and change.resources.users(change.name):
        raise bad_request("The access mode of a disk cannot be changed while it is attached.")
    if change.old and body.get("provisionedThroughput") != change.old.get("provisionedThroughput"):
        changed_s, now_s = change.world.provisioned_s, change.world.clock.now()
        if changed_s.get(change.name, -_BETWEEN_CHANGES_S) + _BETWEEN_CHANGES_S > now_s:
            raise bad_request("Cannot update provisioned throughput due to being rate limited.")
        change.finish.append(lambda: changed_s.update({change.name: now_s}))


def _from_source(change: Change) -> None:
    """Complete a new disk from its snapshot; ApiError for an image, since none is emulated."""
    body, world = change.body, change.world
    place = "/".join(change.name.split("/")[:4])
    body["type"] = body.get("type") or compute_link(f"{place}/diskTypes/pd-standard")
    if not LINK.sub("", body["type"]).startswith(f"{place}/"):
        raise invalid("resource.type", body["type"], "The URL is malformed.")
    if image := body.get("sourceImage") or change.call.query.get("sourceImage"):
        raise not_found(change.shape, change.resources.references.full(image, f"projects/{world.project}"))
    if body.get("sourceSnapshot"):
        snapshot = change.resources.references.full(body["sourceSnapshot"])
        smallest = int(world.directory[snapshot]["diskSizeGb"])
        body["sourceSnapshotId"] = world.directory[snapshot]["id"]
        if int(body.setdefault("sizeGb", smallest)) < smallest:
            why = f"Requested disk size cannot be smaller than the snapshot size ({smallest} GB)."
            raise invalid("resource.sizeGb", body["sizeGb"], why)
        if image_file := world.images.get(snapshot):
            change.finish.append(lambda: world.images.update({change.name: image_file}))
    body.setdefault("sizeGb", DISK_TYPES[body["type"].rpartition("/")[2]].default_gib)


def _check_limits(body: JsonObject, kind: str, limits: DiskType) -> None:
    """ApiError 400 unless size, throughput and access mode are within the type's limits."""
    size = int(body["sizeGb"])
    if not limits.smallest_gib <= size <= limits.largest_gib:
        why = f"Disk size for {kind} must be between {limits.smallest_gib} GB and {limits.largest_gib} GB."
        raise invalid("resource.sizeGb", size, why)
    mode = body.get("accessMode")
    if mode and mode not in limits.access_modes:
        raise invalid("resource.accessMode", mode, f"Access mode is not supported for disk type {kind}.")
    if "provisionedThroughput" not in body:
        return
    throughput = int(body["provisionedThroughput"])
    if limits.throughput_mib_s is None:
        raise bad_request(f"Throughput cannot be provisioned for disk type {kind}.")
    low, high = limits.throughput_mib_s
    if kind == "hyperdisk-ml":
        low, high = max(low, int(size * _ML_MIB_S_PER_GIB[0])), min(high, size * _ML_MIB_S_PER_GIB[1])
    if not low <= throughput <= high:
        why = f"Provisioned throughput for {kind} of {size} GB must be between {low} and {high} MiB/s."
        raise invalid("resource.provisionedThroughput", throughput, why)


def _show_users(change: Change) -> None:
    """Show the users, read from the resources that refer to the disk."""
    change.body["users"] = [compute_link(user) for user in change.resources.users(change.name)]


def _resize(change: Change) -> None:
    """disks.resize: a disk only grows."""
    size = int(change.sent.get("sizeGb", 0))
    if size <= int(change.old["sizeGb"]):
        why = f"New disk size must be larger than the current one ({change.old['sizeGb']} GB)."
        raise invalid("sizeGb", size, why)
    change.body["sizeGb"] = size


def _snapshot(change: Change) -> JsonObject:
    """disks.createSnapshot: the operation is in the disk's zone, the snapshot in the project."""
    resources, world, sent = change.resources, change.world, change.sent
    shape = resources.shape(_SNAPSHOTS, change.call.version)
    name = f"projects/{world.project}/global/snapshots/{sent['name']}"
    resources.iam.require(change.call.principal, "compute.snapshots.create", name)
    body = shape.writable(sent) | {
        "diskSizeGb": change.old["sizeGb"],
        "sourceDisk": compute_link(change.name),
        "sourceDiskId": change.old["id"],
        "snapshotType": "STANDARD",
    }
    made = Change(resources, shape, change.call, name, sent, body, {})
    if image := world.images.get(change.name):
        if world.private.get(change.name, {}).get("written"):
            raise NotEmulatedError("A snapshot of a disk that a machine has written")
        made.finish.append(lambda: world.images.update({name: image}))
    method = change.shape.methods["createSnapshot"]
    return insert(method, made, scope="/".join(change.name.split("/")[:4]))


def add_snapshot(world: World, name: str, image: Path, disk_size_gib: int) -> None:
    """Add a snapshot with the content of `image`, as one that existed before the scenario."""
    if not image.is_file():
        raise bad_request(f"snapshot {name}: the image {image} is not there")
    full_name = f"projects/{world.project}/global/snapshots/{name}"
    world.directory[full_name] = {
        "kind": "compute#snapshot",
        "name": name,
        "status": "READY",
        "diskSizeGb": str(disk_size_gib),
        "labelFingerprint": fingerprint({}),
        "snapshotType": "STANDARD",
        "id": str(int(world.clock.now() * 1e9)),
        "creationTimestamp": world.clock.rfc3339(),
        "storageBytes": str(image.stat().st_size),
        "selfLink": compute_link(full_name),
    }
    world.images[full_name] = image


def _forget(change: Change) -> None:
    """Forget a disk or a snapshot, with the file that is a disk's own."""
    image = change.world.images.pop(change.name, None)
    if image is not None and change.private.get("written"):
        image.unlink(missing_ok=True)
    change.world.provisioned_s.pop(change.name, None)


COLLECTIONS = (
    Collection(
        "compute.disks",
        defaults={"physicalBlockSizeBytes": "4096", "enableConfidentialCompute": False},
        creating={"status": "CREATING"},
        ready={"status": "READY"},
        mutable=("provisionedIops", "provisionedThroughput", "accessMode"),
        references=(
            Reference("type", ("compute.diskTypes",), on_delete=KEEP),
            Reference(
                "sourceSnapshot", (_SNAPSHOTS,), permission="compute.snapshots.useReadOnly", on_delete=KEEP
            ),
        ),
        check=_check_disk,
        shown=_show_users,
        deleted=_forget,
        verbs={"resize": Verb(_resize, _CHANGE_S), "createSnapshot": Verb(_snapshot)},
        seconds=15.0,
        change_seconds=_CHANGE_S,
    ),
    Collection(
        _SNAPSHOTS,
        omit=("insert",),
        creating={"status": "CREATING"},
        ready={"status": "READY"},
        deleted=_forget,
        seconds=30.0,
        change_seconds=_CHANGE_S,
    ),
)
