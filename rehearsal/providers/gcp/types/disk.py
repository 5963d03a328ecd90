"""gcp:compute/disk:Disk, whose labels, size and performance each have a request of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rehearsal.providers.gcp.lifecycle import NOT_FOUND, Context, Resource
from rehearsal.providers.gcp.suppress import basename
from rehearsal.providers.gcp.table import COMPUTE, Update
from rehearsal.providers.gcp.types.compute import LINK, SET_LABELS, compute
from rehearsal.providers.plugin.errors import ProviderApiError


def _disk_type(value: str, planned: Mapping[str, Any]) -> str:
    if "/" in value:
        return value
    return f"projects/{planned['project']}/zones/{basename(planned['zone'])}/diskTypes/{value}"


def resolve_image(context: Context, image: str, planned: Mapping[str, Any]) -> str:
    """Return the full path of an image, or of a family's newest; the API decides which of the two the name
    is.
    """
    if "/images/" in image:
        return image
    project, _, name = image.rpartition("/")
    images = f"projects/{project or planned['project']}/global/images"
    for path in (f"{images}/{name}", f"{images}/family/{name}"):
        try:
            context.send(COMPUTE, "GET", path, library=True)
        except ProviderApiError as error:
            if error.status != NOT_FOUND:
                raise
        else:
            return path
    raise ProviderApiError(NOT_FOUND, f"no image and no image family {image!r}")


class Disk(Resource):
    """A disk; before one is made from an image, the name is looked up as an image and as a family."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Make the disk, with its image spelt out."""
        if image := planned.get("image"):
            planned = {**planned, "image": resolve_image(context, image, planned)}
        super().insert(context, planned, inputs)


DISK = compute(
    Disk,
    "disk:Disk",
    "zones/{zone}/disks",
    (
        replace(SET_LABELS, extra={"name": "{name}", **SET_LABELS.extra}),
        Update("size", "POST", "/resize"),
        Update(
            "provisionedIops provisionedThroughput",
            changed_only=True,
            mask="paths",
            mask_repeats=True,
            extra={"name": "{name}"},
        ),
        Update("accessMode", mask="paths", mask_repeats=True, extra={"name": "{name}"}),
    ),
    {
        "type": {
            "encode": _disk_type,
            "decode": basename,
        },
        "size": {"is": "at=sizeGb no-text", "replaces_if": lambda new, old: new < old},
        "snapshot": {"is": "at=sourceSnapshot", **LINK},
        "image": "at=sourceImage",
        "provisionedIops provisionedThroughput": "no-text",
        "physicalBlockSizeBytes": "no-text",
        "eraseWindowsVssSignature": {
            "is": "local only=false",
            "default": False,
        },  # recorded, unlike other zeros
        "createSnapshotBeforeDestroy createSnapshotBeforeDestroyPrefix": "local only=false",
        "architecture": "refused",
        "diskId": "at=id",
    },
    read_before_delete=True,
)
