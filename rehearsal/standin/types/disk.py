"""gcp:compute/disk:Disk, whose labels, size and performance each have a request of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.standin.errors import ApiError
from rehearsal.standin.lifecycle import NOT_FOUND, Context, Resource
from rehearsal.standin.table import (
    COMPUTE,
    CREATED,
    DELETION_POLICY,
    NAME,
    PROJECT,
    SELF_LINK,
    Field,
    Kind,
    Table,
    Update,
    basename,
    same_basename,
    same_link,
)
from rehearsal.standin.types.places import ZONE, optional_v1_link


def _disk_type(value: str, planned: Mapping[str, Any]) -> str:
    if "/" in value:
        return value
    return f"projects/{planned['project']}/zones/{basename(planned['zone'])}/diskTypes/{value}"


def _same_image(wanted: Any, current: Any) -> bool:
    """An image family is the same as any image in it: `debian-12` and `debian-12-v20260801`."""
    return same_link(wanted, current) or str(basename(current)).startswith(f"{basename(wanted)}-")


class Disk(Resource):
    """A disk; one made from an image first asks whether the name is an image or a family."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Make the disk, with its image spelt out."""
        if image := planned.get("image"):
            planned = {**planned, "image": self._resolve(context, image, planned)}
        super().insert(context, planned, inputs)

    def _resolve(self, context: Context, image: str, planned: Mapping[str, Any]) -> str:
        if "/images/" in image:
            return image
        project, _, name = image.rpartition("/")
        images = f"projects/{project or planned['project']}/global/images"
        for path in (f"{images}/{name}", f"{images}/family/{name}"):
            try:
                context.client.send(COMPUTE, "GET", path, library=True, deadline=context.deadline)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
            else:
                return path
        raise ApiError(NOT_FOUND, f"no image and no image family {image!r}")


DISK = Disk(
    Table(
        token="gcp:compute/disk:Disk",
        service=COMPUTE,
        collection="projects/{project}/zones/{zone}/disks",
        item="projects/{project}/zones/{zone}/disks/{name}",
        read_before_delete=True,
        fields=(
            NAME,
            PROJECT,
            DELETION_POLICY,
            ZONE,
            Field("description", replaces=True),
            Field("labels", Kind.LABELS),
            Field(
                "type",
                default="pd-standard",
                replaces=True,
                same=same_basename,
                encode=_disk_type,
                decode=basename,
            ),
            Field("size", Kind.INT, rest="sizeGb", computed=True),
            Field("snapshot", rest="sourceSnapshot", replaces=True, same=same_link, decode=optional_v1_link),
            Field("image", rest="sourceImage", replaces=True, same=_same_image),
            Field("accessMode", computed=True),
            Field("physicalBlockSizeBytes", Kind.INT, computed=True, replaces=True),
            Field("provisionedIops", Kind.INT, computed=True),
            Field("provisionedThroughput", Kind.INT, computed=True),
            Field("enableConfidentialCompute", Kind.BOOL, computed=True, replaces=True),
            Field("eraseWindowsVssSignature", Kind.BOOL, rest=None, default=False, only=False),
            Field("createSnapshotBeforeDestroy", Kind.BOOL, rest=None, only=False),
            SELF_LINK,
            CREATED,
            Field("diskId", rest="id", output=True),
            Field("labelFingerprint", output=True),
            Field("lastAttachTimestamp", output=True),
            Field("lastDetachTimestamp", output=True),
            Field("sourceDisk", output=True),
            Field("sourceDiskId", output=True),
            Field("sourceImageId", output=True),
            Field("sourceSnapshotId", output=True),
            Field("sourceInstantSnapshot", output=True),
            Field("sourceInstantSnapshotId", output=True),
            Field("storagePool", output=True),
            Field("multiWriter", Kind.BOOL, output=True),
            Field("licenses", Kind.LIST, output=True),
            Field("resourcePolicies", Kind.LIST, output=True),
            Field("users", Kind.LIST, output=True),
            Field("guestOsFeatures", Kind.BLOCKS, output=True, fields=(Field("type"),)),
        ),
        updates=(
            Update(
                ("labels",),
                method="POST",
                suffix="/setLabels",
                extra={"name": "{name}", "labelFingerprint": "{labelFingerprint}"},
            ),
            Update(("size",), method="POST", suffix="/resize"),
            Update(
                ("provisionedIops", "provisionedThroughput"),
                changed_only=True,
                mask="paths",
                mask_repeats=True,
                extra={"name": "{name}"},
            ),
            Update(("accessMode",), mask="paths", mask_repeats=True, extra={"name": "{name}"}),
        ),
    )
)
