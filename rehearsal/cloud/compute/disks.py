"""Disks and snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rehearsal.cloud.compute.places import DISK_TYPES, DiskType
from rehearsal.cloud.compute.registry import Registry, compact, fingerprint, in_use, invalid, set_labels
from rehearsal.cloud.operations import compute_link
from rehearsal.cloud.service import ApiError, Call, JsonObject, Method, World, bad_request

# Virtual seconds that an operation takes: of the order of the real ones, and this project's choice.
_DISK_S, _SNAPSHOT_S, _CHANGE_S = 15.0, 30.0, 3.0
# Hyperdisk ML's throughput is bounded by its size: at most 1,600 MiB/s per GiB, at least 0.12
# (https://cloud.google.com/compute/docs/disks/hd-types/hyperdisk-ml).
_ML_MIB_S_PER_GIB = (0.12, 1600)
_CHANGEABLE = ("provisionedIops", "provisionedThroughput", "accessMode")


class Disks:
    """compute.disks and compute.snapshots."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        return {
            "compute.disks.insert": Method(self.insert, "compute.disks.create", self._disk),
            "compute.disks.get": Method(self.get, "compute.disks.get", self._disk),
            "compute.disks.list": Method(self.list, "compute.disks.list"),
            "compute.disks.delete": Method(self.delete, "compute.disks.delete", self._disk),
            "compute.disks.setLabels": Method(self.label, "compute.disks.setLabels", self._disk),
            "compute.disks.resize": Method(self.resize, "compute.disks.resize", self._disk),
            "compute.disks.update": Method(self.update, "compute.disks.update", self._disk),
            "compute.disks.createSnapshot": Method(self.snapshot, "compute.disks.createSnapshot", self._disk),
            "compute.snapshots.get": Method(self.get_snapshot, "compute.snapshots.get", self._snapshot),
            "compute.snapshots.list": Method(self.list_snapshots, "compute.snapshots.list"),
            "compute.snapshots.delete": Method(
                self.delete_snapshot, "compute.snapshots.delete", self._snapshot
            ),
            "compute.snapshots.setLabels": Method(
                self.label_snapshot, "compute.snapshots.setLabels", self._snapshot
            ),
        }

    def _disk(self, call: Call) -> str:
        name = call.path.get("disk") or call.path.get("resource") or (call.body or {}).get("name", "")
        return self._registry.path(call, "zones", call.path["zone"], "disks", name)

    def _snapshot(self, call: Call) -> str:
        name = call.path.get("snapshot") or call.path.get("resource", "")
        return self._registry.path(call, "global", "snapshots", name)

    async def insert(self, call: Call) -> JsonObject:
        """compute.disks.insert: blank or from a snapshot; images are not emulated, so none is found."""
        registry, sent, zone = self._registry, call.body or {}, call.path["zone"]
        registry.check_place("zone", zone, sent)
        default_type = f"zones/{zone}/diskTypes/pd-standard"
        kind = registry.reference(
            sent.get("type") or default_type, "resource.type", f"zones/{zone}/diskTypes/[^/]+"
        )
        registry.find(kind)
        limits = DISK_TYPES[kind.rsplit("/", 1)[-1]]
        if sent.get("sourceImage"):
            name = registry.reference(sent["sourceImage"], "resource.sourceImage", "global/images/.+")
            registry.find(name)
        name = self._disk(call)
        body: JsonObject = {
            "kind": "compute#disk",
            "physicalBlockSizeBytes": "4096",
            "enableConfidentialCompute": False,
            **compact(sent),
            "status": "CREATING",
            "type": compute_link(kind),
            "zone": compute_link(registry.path(call, "zones", zone)),
            "labelFingerprint": fingerprint(sent.get("labels") or {}),
        }
        image = self._fill_from_snapshot(call, body)
        body.setdefault("sizeGb", limits.default_gib)
        for field in ("sizeGb", "provisionedIops", "provisionedThroughput", "physicalBlockSizeBytes"):
            if field in body:
                body[field] = str(body[field])
        _check_limits(body, kind.rsplit("/", 1)[-1], limits)

        def finish() -> None:
            body["status"] = "READY"
            if image is not None:
                registry.world.images[name] = image

        return registry.insert(call, name, body, duration_s=_DISK_S, finish=finish)

    def _fill_from_snapshot(self, call: Call, body: JsonObject) -> Path | None:
        """Resolve `sourceSnapshot`; the image with its content."""
        if not body.get("sourceSnapshot"):
            return None
        registry = self._registry
        name = registry.reference(body["sourceSnapshot"], "resource.sourceSnapshot", "global/snapshots/[^/]+")
        snapshot = registry.ready(name)
        registry.iam.require(call.principal, "compute.snapshots.useReadOnly", name)
        smallest = int(snapshot["diskSizeGb"])
        body["sourceSnapshot"] = compute_link(name)
        body["sourceSnapshotId"] = snapshot["id"]
        if int(body.setdefault("sizeGb", smallest)) < smallest:
            why = f"Requested disk size cannot be smaller than the snapshot size ({smallest} GB)."
            raise invalid("resource.sizeGb", body["sizeGb"], why)
        return registry.world.images.get(name)

    async def get(self, call: Call) -> JsonObject:
        """compute.disks.get."""
        return self._registry.render(call, self._registry.find(self._disk(call)))

    async def list(self, call: Call) -> JsonObject:
        """compute.disks.list."""
        prefix = self._registry.path(call, "zones", call.path["zone"], "disks")
        return self._registry.listing(call, "compute#diskList", prefix)

    async def delete(self, call: Call) -> JsonObject:
        """compute.disks.delete: refused while the disk is attached."""
        name = self._disk(call)
        for user in self._registry.ready(name).get("users") or ():
            raise in_use("disk", name, user.removeprefix(compute_link("")))

        def finish() -> None:
            self._registry.world.images.pop(name, None)

        return self._registry.delete(call, name, duration_s=_DISK_S, finish=finish)

    async def label(self, call: Call) -> JsonObject:
        """compute.disks.setLabels."""
        return self._label(call, self._disk(call))

    async def label_snapshot(self, call: Call) -> JsonObject:
        """compute.snapshots.setLabels."""
        return self._label(call, self._snapshot(call))

    def _label(self, call: Call, name: str) -> JsonObject:
        sent = call.body or {}
        set_labels(self._registry.ready(name), sent.get("labels"), sent.get("labelFingerprint", ""))
        return self._registry.change(call, name, lambda: None, verb="setLabels", duration_s=_CHANGE_S)

    async def resize(self, call: Call) -> JsonObject:
        """compute.disks.resize: a disk only grows."""
        name = self._disk(call)
        body = self._registry.ready(name)
        size = int((call.body or {}).get("sizeGb", 0))
        if size <= int(body["sizeGb"]):
            raise invalid(
                "sizeGb", size, f"New disk size must be larger than the current one ({body['sizeGb']} GB)."
            )
        return self._change(call, name, {"sizeGb": str(size)}, "resize")

    async def update(self, call: Call) -> JsonObject:
        """compute.disks.update: what `paths` or `updateMask` names."""
        name, sent = self._disk(call), call.body or {}
        paths = [*call.query.get("paths", ()), *filter(None, call.query.get("updateMask", "").split(","))]
        for path in paths:
            if path not in _CHANGEABLE:
                raise bad_request(
                    f"The field '{path}' of a disk cannot be updated; {', '.join(_CHANGEABLE)} can."
                )
        change: JsonObject = {path: str(sent[path]) for path in paths if path in sent}
        if "accessMode" in change and self._registry.find(name).get("users"):
            raise bad_request("The access mode of a disk cannot be changed while it is attached.")
        return self._change(call, name, change, "update")

    def _change(self, call: Call, name: str, change: JsonObject, verb: str) -> JsonObject:
        body = self._registry.ready(name)
        kind = body["type"].rsplit("/", 1)[-1]
        _check_limits(body | change, kind, DISK_TYPES[kind])
        return self._registry.change(call, name, lambda: body.update(change), verb=verb, duration_s=_CHANGE_S)

    async def snapshot(self, call: Call) -> JsonObject:
        """compute.disks.createSnapshot."""
        registry, sent, disk_name = self._registry, call.body or {}, self._disk(call)
        disk = registry.ready(disk_name)
        name = registry.path(call, "global", "snapshots", sent["name"])
        registry.iam.require(call.principal, "compute.snapshots.create", name)
        body = _new_snapshot(sent["name"], int(disk["sizeGb"]))
        body.update({key: sent[key] for key in ("description", "labels", "storageLocations") if key in sent})
        body.update(
            status="CREATING",
            sourceDisk=compute_link(disk_name),
            sourceDiskId=disk["id"],
            labelFingerprint=fingerprint(sent.get("labels") or {}),
        )

        def finish() -> None:
            body["status"] = "READY"
            if disk_name in registry.world.images:
                registry.world.images[name] = registry.world.images[disk_name]

        scope = registry.path(call, "zones", call.path["zone"])
        return registry.insert(
            call, name, body, duration_s=_SNAPSHOT_S, finish=finish, verb="createSnapshot", scope=scope
        )

    async def get_snapshot(self, call: Call) -> JsonObject:
        """compute.snapshots.get."""
        return self._registry.render(call, self._registry.find(self._snapshot(call)))

    async def list_snapshots(self, call: Call) -> JsonObject:
        """compute.snapshots.list."""
        prefix = self._registry.path(call, "global", "snapshots")
        return self._registry.listing(call, "compute#snapshotList", prefix)

    async def delete_snapshot(self, call: Call) -> JsonObject:
        """compute.snapshots.delete: disks made from it stay."""
        return self._registry.delete(call, self._snapshot(call), duration_s=_SNAPSHOT_S)


def _new_snapshot(name: str, disk_size_gib: int) -> JsonObject:
    return {
        "kind": "compute#snapshot",
        "name": name,
        "status": "READY",
        "diskSizeGb": str(disk_size_gib),
        "labelFingerprint": fingerprint({}),
        "snapshotType": "STANDARD",
    }


def add_snapshot(world: World, name: str, image: Path, disk_size_gib: int) -> None:
    """A snapshot that was there before the story begins, with the content of `image`."""
    if not image.is_file():
        raise bad_request(f"snapshot {name}: the image {image} is not there")
    full_name = f"projects/{world.project}/global/snapshots/{name}"
    world.directory[full_name] = _new_snapshot(name, disk_size_gib) | {
        "id": str(int(world.clock.now() * 1e9)),
        "creationTimestamp": world.clock.rfc3339(),
        "storageBytes": str(image.stat().st_size),
        "selfLink": compute_link(full_name),
    }
    world.images[full_name] = image


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
        raise ApiError(
            400,
            "INVALID_ARGUMENT",
            f"Throughput cannot be provisioned for disk type {kind}.",
            reason="invalid",
        )
    low, high = limits.throughput_mib_s
    if kind == "hyperdisk-ml":
        low, high = max(low, int(size * _ML_MIB_S_PER_GIB[0])), min(high, size * _ML_MIB_S_PER_GIB[1])
    if not low <= throughput <= high:
        why = f"Provisioned throughput for {kind} of {size} GB must be between {low} and {high} MiB/s."
        raise invalid("resource.provisionedThroughput", throughput, why)
