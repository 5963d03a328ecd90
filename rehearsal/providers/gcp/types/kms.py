"""gcp:kms/keyRing:KeyRing and gcp:kms/cryptoKey:CryptoKey, which Google never deletes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import KMS, Update
from rehearsal.providers.plugin.errors import StandInError

_DESTROYED = ("DESTROYED", "DESTROY_SCHEDULED")
_ROTATION = {"updateMask": "rotationPeriod,nextRotationTime"}


class KeyRing(Resource):
    """A key ring: it stays permanently, so destroying it sends nothing."""

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Forget the ring."""


class CryptoKey(Resource):
    """A key: destroying it destroys its versions and stops its rotation, the key's name stays."""

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Set the creation of a first version explicitly."""
        return {**planned, "skipInitialVersionCreation": bool(planned.get("skipInitialVersionCreation"))}

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the key; its first rotation is a period from now."""
        return {**super().content(planned, inputs), **_next_rotation(planned)}

    def written(self, context: Context, request: Update, change: PlannedUpdate) -> dict[str, Any]:
        """Patch the fields that can change."""
        return {**super().written(context, request, change), **_next_rotation(change.planned)}

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Destroy every version, then stop the rotation that would make new ones."""
        item = self.item(known)
        versions = context.send(KMS, "GET", f"{item}/cryptoKeyVersions", library=True)
        for version in versions.get("cryptoKeyVersions", ()):
            if version["state"] not in _DESTROYED:
                context.send(KMS, "POST", f"{version['name']}:destroy", body={}, library=True)
        if known.get("rotationPeriod"):
            context.send(KMS, "PATCH", item, body={}, query=_ROTATION, library=True)

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """Ring and name; the ring's id holds slashes itself."""
        ring, _, name = id_.rpartition("/cryptoKeys/")
        if not ring:
            raise StandInError(f"CryptoKey id {id_!r} doesn't have the form {self.table.item}")
        return {"keyRing": ring, "name": name}


def _next_rotation(planned: Mapping[str, Any]) -> dict[str, str]:
    """Return the time of the next rotation, which Google requires with the period (`7776000s`)."""
    if not (period := planned.get("rotationPeriod")):
        return {}
    moment = datetime.now(UTC) + timedelta(seconds=float(str(period).removesuffix("s")))
    return {"nextRotationTime": moment.isoformat().replace("+00:00", "Z")}


KEY_RING = KeyRing(
    "gcp:kms/keyRing:KeyRing",
    KMS,
    "projects/{project}/locations/{location}/keyRings/{name}",
    exceptions={"name": "nameless"},
    create_query={"keyRingId": "{name}"},
    create_has_body=False,
)

CRYPTO_KEY = CryptoKey(
    "gcp:kms/cryptoKey:CryptoKey",
    KMS,
    "{keyRing}/cryptoKeys/{name}",
    (Update("labels rotationPeriod versionTemplate", mask="updateMask"),),
    {
        "name": "nameless",
        "rotationPeriod": {"mask": "rotationPeriod,nextRotationTime"},
        "skipInitialVersionCreation": "local",
    },
    schema="CryptoKey",
    create_query={"cryptoKeyId": "{name}", "skipInitialVersionCreation": "{skipInitialVersionCreation}"},
)
