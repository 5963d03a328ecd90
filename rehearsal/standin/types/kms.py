"""gcp:kms/keyRing:KeyRing and gcp:kms/cryptoKey:CryptoKey, which Google never deletes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rehearsal.standin import mapping
from rehearsal.standin.errors import StandInError
from rehearsal.standin.lifecycle import Context, Resource
from rehearsal.standin.settings import Settings
from rehearsal.standin.table import DELETION_POLICY, KMS, PROJECT, Field, Kind, Table, Update

_DESTROYED = ("DESTROYED", "DESTROY_SCHEDULED")
_ROTATION = {"updateMask": "rotationPeriod,nextRotationTime"}


class KeyRing(Resource):
    """A key ring: it stays for ever, so destroying it sends nothing."""

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Forget the ring."""


class CryptoKey(Resource):
    """A key: destroying it destroys its versions and stops its rotation, the key's name stays."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Make the key; the first rotation is a period from now."""
        content = {**mapping.body(self.table.inputs, planned, inputs), **_next_rotation(planned)}
        skips = "true" if planned.get("skipInitialVersionCreation") else "false"
        query = {"cryptoKeyId": planned["name"], "skipInitialVersionCreation": skips}
        self.call(context, "POST", f"{planned['keyRing']}/cryptoKeys", planned, body=content, query=query)

    def patch(
        self,
        context: Context,
        request: Update,
        planned: Mapping[str, Any],
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        changed: set[str],
    ) -> None:
        """Send all that can change; the mask names what did."""
        fields = [f for f in self.table.fields if f.name in request.fields]
        content = {**mapping.body(fields, planned, inputs, update=True), **_next_rotation(planned)}
        mask: list[str] = [
            name for name in ("labels", "rotationPeriod", "versionTemplate") if name in changed
        ]
        if "rotationPeriod" in mask:
            mask.insert(mask.index("rotationPeriod") + 1, "nextRotationTime")
        self.call(
            context, "PATCH", self.item(planned), planned, body=content, query={"updateMask": ",".join(mask)}
        )

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Destroy every version, then stop the rotation that would make new ones."""
        client, item, deadline = context.client, self.item(known), context.deadline
        found = client.send(KMS, "GET", f"{item}/cryptoKeyVersions", library=True, deadline=deadline)
        for version in found.get("cryptoKeyVersions", ()):
            if version["state"] not in _DESTROYED:
                client.send(
                    KMS, "POST", f"{version['name']}:destroy", body={}, library=True, deadline=deadline
                )
        if known.get("rotationPeriod"):
            client.send(KMS, "PATCH", item, body={}, query=_ROTATION, library=True, deadline=deadline)

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """Ring and name; the ring's id holds slashes itself."""
        ring, _, name = id_.rpartition("/cryptoKeys/")
        if not ring:
            raise StandInError(f"CryptoKey id {id_!r} doesn't have the form {self.table.item}")
        return {"keyRing": ring, "name": name}


def _next_rotation(planned: Mapping[str, Any]) -> dict[str, str]:
    """The moment of the next rotation, which Google wants together with the period (`7776000s`)."""
    if not (period := planned.get("rotationPeriod")):
        return {}
    moment = datetime.now(UTC) + timedelta(seconds=float(str(period).removesuffix("s")))
    return {"nextRotationTime": moment.isoformat().replace("+00:00", "Z")}


KEY_RING = KeyRing(
    Table(
        token="gcp:kms/keyRing:KeyRing",
        service=KMS,
        collection="projects/{project}/locations/{location}/keyRings",
        item="projects/{project}/locations/{location}/keyRings/{name}",
        create_query={"keyRingId": "{name}"},
        create_has_body=False,
        fields=(
            Field("name", rest=None, replaces=True),
            PROJECT,
            Field("location", rest=None, required=True, replaces=True),
        ),
    )
)

CRYPTO_KEY = CryptoKey(
    Table(
        token="gcp:kms/cryptoKey:CryptoKey",
        service=KMS,
        collection="{keyRing}/cryptoKeys",
        item="{keyRing}/cryptoKeys/{name}",
        fields=(
            Field("name", rest=None, replaces=True),
            DELETION_POLICY,
            Field("keyRing", rest=None, required=True, replaces=True),
            Field("purpose", default="ENCRYPT_DECRYPT", replaces=True),
            Field("skipInitialVersionCreation", Kind.BOOL, rest=None, replaces=True),
            Field("destroyScheduledDuration", computed=True, replaces=True),
            Field("labels", Kind.LABELS),
            Field("rotationPeriod"),
            Field(
                "versionTemplate",
                Kind.BLOCK,
                computed=True,
                fields=(
                    Field("algorithm", required=True),
                    Field("protectionLevel", computed=True, replaces=True),
                ),
            ),
            Field(
                "primaries",
                Kind.BLOCKS,
                rest="primary",
                output=True,
                decode=lambda raw: [raw] if raw else None,
                fields=(Field("name"), Field("state")),
            ),
            Field("importOnly", Kind.BOOL, output=True),
            Field("cryptoKeyBackend", output=True),
        ),
        updates=(Update(("labels", "rotationPeriod", "versionTemplate")),),
    )
)
