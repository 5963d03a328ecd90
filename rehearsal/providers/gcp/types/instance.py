"""gcp:compute/instance:Instance and gcp:compute/instanceTemplate:InstanceTemplate, much alike."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rehearsal.providers.gcp.lifecycle import Change, Context, Resource
from rehearsal.providers.gcp.table import COMPUTE, Update, basename
from rehearsal.providers.gcp.types.compute import EXCEPTIONS, LINK, SET_LABELS, compute
from rehearsal.providers.gcp.types.disk import resolve_image, same_image

_SCRIPT = "startup-script"
_SCOPES = "https://www.googleapis.com/auth/"


def _scope(name: str) -> str:
    return name if "/" in name else _SCOPES + name


def _null(value: Any, _planned: Mapping[str, Any]) -> Any:
    return value or None


class Machine(Resource):
    """What describes a machine: its metadata and its tags are lists of items at Google."""

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The machine, its start-up script among its metadata."""
        found = super().content(planned, inputs)
        items = self.items(planned)
        return {**found, "metadata": {"items": items}} if items else found

    def items(self, planned: Mapping[str, Any]) -> list[dict[str, str]]:
        """The metadata in Google's form."""
        script = planned.get("metadataStartupScript")
        given = {**(planned.get("metadata") or {}), **({_SCRIPT: script} if script else {})}
        return [{"key": key, "value": value} for key, value in sorted(given.items())]

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """The machine, with a start-up script where the program gave it."""
        outputs = super().read(context, id_, prior)
        if outputs is not None:
            metadata = {item["key"]: item["value"] for item in outputs["metadata"] or ()}
            script = metadata.pop(_SCRIPT, "") if prior.get("metadataStartupScript") else ""
            outputs |= {"metadata": metadata, "metadataStartupScript": script}
        return outputs


_MACHINE: dict[str, str | Mapping[str, Any]] = {
    "metadata": "at=metadata.items free never",
    "metadataStartupScript": "local free",
    "metadataFingerprint": "at=metadata.fingerprint",
    "tags": "set at=tags.items",
    "tagsFingerprint": "at=tags.fingerprint",
    "scheduling.nodeAffinities": {
        "is": "always",
        "encode": lambda _value, _: [None],
        "decode": lambda _: None,
    },
    "scheduling.hostErrorTimeoutSeconds": {"is": "always", "encode": _null},
    "scheduling.skipGuestOsShutdown scheduling.preemptible scheduling.automaticRestart": "always",
    "serviceAccount": "at=serviceAccounts",
    "serviceAccount.scopes": {
        "encode": lambda scopes, _: [_scope(one) for one in scopes],
        "same": lambda one, other: {_scope(s) for s in one} == {_scope(s) for s in other or ()},
    },
    "shieldedInstanceConfig.*": "always",
    "networkInterfaces.network networkInterfaces.subnetwork": LINK,
    "networkInterfaces.subnetworkProject": {
        "is": "at=subnetwork never",
        "decode": lambda link: link and link.partition("/projects/")[2].partition("/")[0],
    },
    "enableDisplay": "at=displayDevice.enableDisplay",
    "partnerMetadata": "refused",
}


class Instance(Machine):
    """An instance, whose boot disk is read beside it."""

    def complete(self, context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Spell the image out."""
        boot = planned.get("bootDisk") or {}
        made = boot.get("initializeParams") or {}
        if not made.get("image"):
            return planned
        made = {**made, "image": resolve_image(context, made["image"], planned)}
        return {**planned, "bootDisk": {**boot, "initializeParams": made}}

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The instance; a zone stands in the path alone."""
        found = super().content(planned, inputs)
        found["disks"][0]["boot"] = True
        return {**found, "params": {}}

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """The instance, and of its boot disk what the disk itself tells."""
        outputs = super().read(context, id_, prior)
        boot = (outputs or {}).get("bootDisk")
        if outputs is not None and boot and boot.get("source"):
            path = f"projects/{boot['source'].rpartition('projects/')[2]}"
            disk = self.call(context, "GET", path, prior)
            params = {
                "size": int(disk["sizeGb"]),
                "type": basename(disk["type"]),
                "image": disk.get("sourceImage", ""),
                "labels": disk.get("labels"),
                "architecture": disk.get("architecture", ""),
            }
            outputs["bootDisk"] = {**boot, "initializeParams": params, "interface": ""}
        return outputs

    def update(self, context: Context, id_: str, *rest: Any) -> dict[str, Any]:
        """Look at the instance, then change it."""
        self.get(context, self.known(id_, {}, context.settings))
        return super().update(context, id_, *rest)

    def written(self, context: Context, request: Update, change: Change) -> dict[str, Any]:
        """Metadata goes out whole, with the fingerprint of what is there."""
        if request.suffix != "/setMetadata":
            return super().written(context, request, change)
        found = self.call(context, "GET", self.item(change.planned), change.planned)
        return {"fingerprint": found["metadata"]["fingerprint"], "items": self.items(change.planned)}


def _in_zone(collection: str) -> dict[str, Any]:
    def encode(value: str, planned: Mapping[str, Any]) -> str:
        if "/" in value:
            return value
        return f"projects/{planned['project']}/zones/{basename(planned['zone'])}/{collection}/{value}"

    return {"encode": encode, "decode": basename}


_BOOT = "bootDisk.initializeParams"

INSTANCE = compute(
    Instance,
    "instance:Instance",
    "zones/{zone}/instances",
    (Update("metadata metadataStartupScript", "POST", "/setMetadata"), SET_LABELS),
    {
        **_MACHINE,
        "zone": "at=zone never",
        "bootDisk": "at=disks",
        "bootDisk.mode": "default=READ_WRITE",
        "bootDisk.source": LINK,
        f"{_BOOT}.size": "at=diskSizeGb text",
        f"{_BOOT}.type": {"is": "at=diskType", **_in_zone("diskTypes")},
        f"{_BOOT}.image": {"is": "at=sourceImage", "same": same_image},
        f"{_BOOT}.snapshot": "at=sourceSnapshot",
        "params attachedDisks scratchDisks desiredStatus": "refused",
        "allowStoppingForUpdate": "local",
        "eraseWindowsVssSignature": "local only=false default=false",
        "canIpForward deletionProtection": "always",
        "machineType": _in_zone("machineTypes"),
        "scheduling.instanceTerminationAction": "always",
        "scheduling.gracefulShutdown scheduling.localSsdRecoveryTimeout": "always",
        "scheduling.maxRunDuration scheduling.onInstanceStopAction": "always",
        "scheduling.preemptionNoticeDuration": "at=preemptionNoticeDuration always",
        "currentStatus": "at=status",
        "instanceId": "at=id",
    },
    read_query={"view": "FULL"},
    looks=1,
)


class InstanceTemplate(Machine):
    """A template: a machine's properties under a name that ends in the moment it was made."""

    def complete(self, context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Choose the name, and spell the images out."""
        moment = f"{datetime.now(UTC):%Y%m%d%H%M%S%f}"[:17] + "000000001"
        name = planned.get("name") or f"{planned.get('namePrefix') or 'terraform-'}{moment}"
        disks = [
            {**disk, "sourceImage": resolve_image(context, disk["sourceImage"], planned)}
            if disk.get("sourceImage")
            else disk
            for disk in planned.get("disks") or ()
        ]
        return {**planned, "name": name, "disks": disks}

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The name, and everything else as properties."""
        found = super().content(planned, inputs)
        for disk in found["disks"]:
            if "diskSizeGb" in disk:
                disk["initializeParams"]["diskSizeGb"] = disk["diskSizeGb"]
        return {"name": planned["name"], "properties": found}

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The template, whose properties are its own again."""
        rest = super().get(context, {**known, "name": known.get("numericId") or known["name"]})
        return rest and {**rest["properties"], **{k: v for k, v in rest.items() if k != "properties"}}


INSTANCE_TEMPLATE = InstanceTemplate(
    "gcp:compute/instanceTemplate:InstanceTemplate",
    COMPUTE,
    "projects/{project}/global/instanceTemplates/{name}",
    exceptions={
        **EXCEPTIONS,
        **_MACHINE,
        "metadata metadataStartupScript tags": "fixed",
        "name": "at=name never",
        "namePrefix region": "local fixed",
        "numericId": "at=id",
        "selfLink": {"is": "at=selfLink", "decode": None},
        "selfLinkUnique creationTimestamp": {"rest": ""},
        "disks.diskSizeGb": "text",
        "disks.sourceImage": {
            "is": "at=initializeParams.sourceImage",
            "same": same_image,
            "decode": lambda link: link and "projects/" + link.rpartition("projects/")[2],
        },
        "disks.diskType disks.diskName disks.architecture disks.labels": "refused",
        "disks.diskType": "at=initializeParams.diskType no-output",
    },
    read_query={"view": "FULL"},
    schema="InstanceProperties",
    assigned={"numericId": "targetId"},
)
