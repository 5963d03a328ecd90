"""Declares the TPU layer."""

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra import names, preflight, upstream
from infra.nodes import Node, nodes
from infra.settings import Settings
from infra.tpu import bundle
from infra.tpu.backend import Place
from infra.tpu.mark import StackMark
from infra.tpu.metadata import metadata
from infra.tpu.slice import TpuSlice


def program(settings: Settings, provider: gcp.Provider) -> dict[str, Any]:
    """All slices. Returns the outputs of the stack."""
    wanted = nodes(settings)
    bucket = upstream.read("storage", "bucketName", settings.storage.bucket_name)
    steps = upstream.read("storage", "stepsBucketName", names.steps_bucket(settings))
    jobs = ((node.run, node.kind.name, len(node.together) or 1) for node in wanted if node.run)
    for run, kind, together in dict.fromkeys(jobs):
        if pulumi.runtime.is_dry_run() and (words := preflight.said(run, kind, together)):
            (pulumi.log.warn if words.warn else pulumi.log.info)(words.line)
    if wanted:
        bundle.require(settings, bucket if upstream.is_up("storage") else None, provider)
    mark = StackMark()
    slices = []
    for node in wanted:
        if node.member is not None:
            continue
        place = _place(settings, node)
        attributes = metadata(
            settings, node, bucket=bucket, steps_bucket=steps, data_disk_id=place.data_disk_id
        )
        slices.append(TpuSlice(node, place, attributes, opts=pulumi.ResourceOptions(provider=provider)))
    return {
        "slices": [one.outputs(settings.gcp.project, bucket) for one in slices],
        "fleets": _fleets(settings, wanted),
        "stackId": mark.id,
        "bundle": settings.tpu.bundle,
    }


def _fleets(settings: Settings, wanted: Sequence[Node]) -> list[dict[str, Any]]:
    """What Pulumi doesn't make, and who does."""
    found = []
    for one in settings.tpu.slices:
        members = [node for node in wanted if node.slice == one.name and node.member is not None]
        if members:
            command = f"python -m fleet create {settings.environment} --slice {one.name}"
            zones = ", ".join(sorted({node.zone for node in members}))
            what = f"{len(members)} x {members[0].kind.name} in {zones}"
            pulumi.log.info(f"fleet {one.name}: {what} are not Pulumi's: `{command}` makes and keeps them")
            found.append({"name": one.name, "count": len(members), "create": command})
    return found


def _place(settings: Settings, node: Node) -> Place:
    """What the layers before this one made for a node's zone."""
    region, zone = node.region, node.zone
    disk = None
    if settings.data.snapshot:
        disk = upstream.read("data", "diskIds", names.disk_id(settings, zone), key=zone)
    return Place(
        network_id=upstream.read("network", "networkId", names.network_id(settings)),
        subnet_id=upstream.read("network", "subnetIds", names.subnet_id(settings, region), key=region),
        data_disk_id=disk,
        service_account_email=upstream.read(
            "storage", "serviceAccountEmail", names.service_account_email(settings)
        ),
        secure_boot=settings.tpu.secure_boot,
    )
