"""gcp:compute/instance:Instance and gcp:compute/address:Address.

An instance's metadata, tags, labels and protection change in place, and its machine type while it is stopped;
the stand-in knows no other change, and one of those that the official provider sends otherwise fails by name.
Attached disks and the stop aren't recorded: they are as in the provider's source
(resource_compute_instance.go, expandAttachedDisk, needToStopInstanceBeforeUpdating).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp.lifecycle import NOT_FOUND, Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.suppress import basename
from rehearsal.providers.gcp.table import Update
from rehearsal.providers.gcp.types.compute import LINK, SET_LABELS, compute, v1_link
from rehearsal.providers.gcp.types.disk import resolve_image
from rehearsal.providers.plugin.errors import ProviderApiError, StandInError

_SCRIPT = "startup-script"
_SCOPES = "https://www.googleapis.com/auth/"


def _scope(name: str) -> str:
    return name if "/" in name else _SCOPES + name


def _null(value: Any, _planned: Mapping[str, Any]) -> Any:
    return value or None


def _items(planned: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the metadata in Google's form, the start-up script among them."""
    script = planned.get("metadataStartupScript")
    given = {**(planned.get("metadata") or {}), **({_SCRIPT: script} if script else {})}
    return [{"key": key, "value": value} for key, value in sorted(given.items())]


class Instance(Resource):
    """An instance, whose boot disk is read beside it."""

    def complete(self, context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Look the image up."""
        boot = planned.get("bootDisk") or {}
        made = boot.get("initializeParams") or {}
        if not made.get("image"):
            return planned
        made = {**made, "image": resolve_image(context, made["image"], planned)}
        return {**planned, "bootDisk": {**boot, "initializeParams": made}}

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the instance with its metadata and all its disks; a zone stands in the path alone."""
        content = super().content(planned, inputs)
        content["disks"][0]["boot"] = True
        for disk in planned.get("attachedDisks") or ():
            names = {"source": "source", "mode": "mode", "deviceName": "deviceName"}
            content["disks"].append({key: disk[name] for key, name in names.items() if disk.get(name)})
        items = _items(planned)
        return {**content, "params": {}, **({"metadata": {"items": items}} if items else {})}

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Google's JSON of the instance, in full; None on 404."""
        try:
            rest: Mapping[str, Any] = self.call(
                context, "GET", self.item(known), known, query={"view": "FULL"}
            )
        except ProviderApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        attached = [disk for disk in rest.get("disks", ()) if not disk.get("boot")]
        return {**rest, "disks": rest["disks"][:1], "attached": attached}

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the instance, and of its boot disk what the disk itself tells."""
        outputs = super().read(context, id_, prior)
        if outputs is None:
            return None
        metadata = {item["key"]: item["value"] for item in outputs["metadata"] or ()}
        script = metadata.pop(_SCRIPT, "") if prior.get("metadataStartupScript") else ""
        outputs |= {"metadata": metadata, "metadataStartupScript": script}
        if (boot := outputs.get("bootDisk")) and boot.get("source"):
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

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send one change; protection is a query, and another machine type needs a stop."""
        if request.suffix == "/setMachineType":
            self._stopped(context, request, change)
            return
        if request.suffix != "/setDeletionProtection":
            super().patch(context, request, change)
            return
        query = {"deletionProtection": str(bool(change.planned["deletionProtection"])).lower()}
        path = self.item(change.planned) + request.suffix
        self.call(context, "POST", path, change.planned, query=query)

    def _stopped(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send a change between a stop and a start, unless the instance was off."""
        planned = change.planned
        status = (self.get(context, planned) or {}).get("status")
        if status == "RUNNING" and not planned.get("allowStoppingForUpdate"):
            raise StandInError(
                "Changing the machine_type on a started instance requires stopping it. To acknowledge this,"
                " please set allow_stopping_for_update = true in your config."
            )
        if status != "TERMINATED":
            self.call(context, "POST", f"{self.item(planned)}/stop", planned)
        super().patch(context, request, change)
        if status == "RUNNING":
            self.call(context, "POST", f"{self.item(planned)}/start", planned)

    def written(self, context: Context, request: Update, change: PlannedUpdate) -> dict[str, Any]:
        """Return the body of a change; metadata and tags are whole, with the fingerprint of what is there."""
        field = {"/setMetadata": "metadata", "/setTags": "tags"}.get(request.suffix)
        if field is None:
            return super().written(context, request, change)
        current = self.call(context, "GET", self.item(change.planned), change.planned)
        items = _items(change.planned) if field == "metadata" else list(change.planned.get("tags") or ())
        return {"fingerprint": current[field]["fingerprint"], "items": items}


def _in_zone(collection: str) -> dict[str, Any]:
    def encode(value: str, planned: Mapping[str, Any]) -> str:
        if "/" in value:
            return value
        return f"projects/{planned['project']}/zones/{basename(planned['zone'])}/{collection}/{value}"

    return {"encode": encode, "decode": basename}


def _attached(disks: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    names = ("source", "mode", "deviceName")
    return [{name: v1_link(disk.get(name)) or "" for name in names} for disk in disks or ()]


_BOOT = "bootDisk.initializeParams"

INSTANCE = compute(
    Instance,
    "instance:Instance",
    "zones/{zone}/instances",
    (
        Update("metadata metadataStartupScript", "POST", "/setMetadata"),
        Update("tags", "POST", "/setTags"),
        SET_LABELS,
        Update("deletionProtection", "POST", "/setDeletionProtection"),
        Update("machineType", "POST", "/setMachineType"),
    ),
    {
        "metadata": "at=metadata.items never",
        "metadataStartupScript": "local",
        "metadataFingerprint": "at=metadata.fingerprint",
        "tags": "at=tags.items",
        "tagsFingerprint": "at=tags.fingerprint",
        "scheduling.nodeAffinities": {
            "is": "always",
            "encode": lambda _value, _: [None],
            "decode": lambda _: None,
        },
        "scheduling.hostErrorTimeoutSeconds": {"is": "always", "encode": _null},
        "scheduling.skipGuestOsShutdown scheduling.preemptible scheduling.automaticRestart": "always",
        "scheduling.instanceTerminationAction": "always",
        "scheduling.gracefulShutdown scheduling.localSsdRecoveryTimeout": "always",
        "scheduling.maxRunDuration scheduling.onInstanceStopAction": "always",
        "scheduling.preemptionNoticeDuration": "at=preemptionNoticeDuration always",
        "serviceAccount": "at=serviceAccounts",
        "serviceAccount.scopes": {
            "encode": lambda scopes, _: [_scope(scope) for scope in scopes],
            "same": lambda new, old: {_scope(s) for s in new} == {_scope(s) for s in old or ()},
        },
        "shieldedInstanceConfig.*": "always",
        "networkInterfaces.network networkInterfaces.subnetwork": LINK,
        "networkInterfaces.subnetworkProject": {
            "is": "at=subnetwork never",
            "decode": lambda link: link and link.partition("/projects/")[2].partition("/")[0],
        },
        "enableDisplay": "at=displayDevice.enableDisplay",
        "partnerMetadata params scratchDisks desiredStatus": "refused",
        "zone": "at=zone never",
        "bootDisk": "at=disks",
        "bootDisk.source": LINK,
        f"{_BOOT}.size": "at=diskSizeGb text",
        f"{_BOOT}.type": {"is": "at=diskType", **_in_zone("diskTypes")},
        f"{_BOOT}.image": "at=sourceImage",
        f"{_BOOT}.snapshot": "at=sourceSnapshot",
        "attachedDisks": {"is": "at=attached never", "decode": _attached},
        "attachedDisks.*": "nameless",
        "allowStoppingForUpdate": "local",
        "eraseWindowsVssSignature": {"is": "local only=false", "default": False},  # recorded, as a disk's
        "canIpForward deletionProtection": "always",
        "machineType": _in_zone("machineTypes"),
        "currentStatus": "at=status",
        "instanceId": "at=id",
    },
    looks=1,
)


class Address(Resource):
    """An address, whose labels are sent a second time once it is made."""

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send the labels with their fingerprint, then read the address."""
        rest = self.get(context, planned) or {}
        if planned["effectiveLabels"]:
            state = {"labelFingerprint": rest.get("labelFingerprint", "")}
            self.patch(context, SET_LABELS, PlannedUpdate(planned, planned, state, {"labels"}))
        return self.read(context, id_, planned)


ADDRESS = compute(
    Address, "address:Address", "regions/{region}/addresses", (SET_LABELS,), {"addressId": "at=id"}
)
