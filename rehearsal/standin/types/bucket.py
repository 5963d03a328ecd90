"""gcp:storage/bucket:Bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from rehearsal.standin.errors import StandInError
from rehearsal.standin.lifecycle import Context, Resource
from rehearsal.standin.table import (
    COMPUTE,
    DELETION_POLICY,
    NAME,
    PROJECT,
    STORAGE,
    Field,
    Kind,
    Send,
    Table,
    Update,
)

_STATES = {"LIVE": True, "ARCHIVED": False}  # ANY is left out
_ACCESS = {"uniformBucketLevelAccess", "publicAccessPrevention"}


class Bucket(Resource):
    """A bucket. It is deleted only if empty, or with `forceDestroy` together with every object in it."""

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Look at the bucket once to see that it is there, then read it."""
        self.get(context, planned)
        return self.read(context, id_, planned)

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Empty bucket-wide permissions have a value even where nobody set one."""
        return {**planned, "uniformBucketLevelAccess": planned.get("uniformBucketLevelAccess") or False}

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """The bucket, and its project's id, which Cloud Storage doesn't tell: Compute Engine does."""
        outputs = super().read(context, id_, prior)
        if outputs is None:
            return None
        if not prior.get("id") or not outputs["project"]:
            number = outputs["projectNumber"]
            found = context.client.send(COMPUTE, "GET", f"projects/{number}", deadline=context.deadline)
            outputs["project"] = found["name"]
        return {**outputs, "url": f"gs://{outputs['name']}"}

    def patch(
        self,
        context: Context,
        request: Update,
        planned: Mapping[str, Any],
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        changed: set[str],
    ) -> None:
        """Send what changed; both access settings together, and null for labels that are to go."""
        if changed & _ACCESS:
            changed = changed | _ACCESS
        if "labels" in changed:
            gone = {
                key: None for key in state.get("pulumiLabels") or {} if key not in planned["pulumiLabels"]
            }
            planned = {**planned, "effectiveLabels": {**planned["effectiveLabels"], **gone}}
        super().patch(context, request, planned, inputs, state, changed)

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Look for caches and objects in the way, delete those if asked to, then the bucket."""
        item = self.item(known)
        context.client.send(STORAGE, "GET", f"{item}/anywhereCaches/", deadline=context.deadline)
        while objects := self.call(context, "GET", f"{item}/o", known, query={"versions": "true"}).get(
            "items"
        ):
            if not known.get("forceDestroy"):
                raise StandInError(
                    f"Error trying to delete bucket {known['name']} containing objects"
                    " without `force_destroy` set to true"
                )
            for found in objects:
                path = f"{item}/o/{quote(found['name'], safe='')}"
                self.call(context, "DELETE", path, known, query={"generation": found["generation"]})
        self.call(context, "DELETE", item, known)


_CONDITION = (
    Field("age", Kind.INT),
    Field("createdBefore"),
    Field("customTimeBefore"),
    Field("daysSinceCustomTime", Kind.INT),
    Field("daysSinceNoncurrentTime", Kind.INT),
    Field("noncurrentTimeBefore"),
    Field("numNewerVersions", Kind.INT),
    Field("matchesPrefixes", Kind.LIST, rest="matchesPrefix"),
    Field("matchesSuffixes", Kind.LIST, rest="matchesSuffix"),
    Field("matchesStorageClasses", Kind.LIST, rest="matchesStorageClass"),
    Field(
        "withState",
        rest="isLive",
        computed=True,
        one_of=("LIVE", "ARCHIVED", "ANY"),
        encode=lambda state, _: _STATES.get(state),
        decode=lambda live: "ANY" if live is None else "LIVE" if live else "ARCHIVED",
    ),
)


def _rules(rules: list[dict[str, Any]] | None, _planned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lifecycle rules without the nulls that withState ANY leaves behind."""
    return [
        {**rule, "condition": {k: v for k, v in rule["condition"].items() if v is not None}}
        for rule in rules or ()
    ]


_MUTABLE = (
    Field("labels", Kind.LABELS),
    Field(
        "lifecycleRules",
        Kind.BLOCKS,
        rest="lifecycle.rule",
        send=Send.ALWAYS,
        encode=_rules,
        fields=(
            Field(
                "action",
                Kind.BLOCK,
                required=True,
                fields=(Field("type", required=True), Field("storageClass")),
            ),
            Field("condition", Kind.BLOCK, required=True, fields=_CONDITION),
        ),
    ),
    Field("storageClass", default="STANDARD"),
    Field("versioning", Kind.BLOCK, fields=(Field("enabled", Kind.BOOL, required=True, send=Send.ALWAYS),)),
    Field(
        "softDeletePolicy",
        Kind.BLOCK,
        computed=True,
        fields=(
            Field(
                "retentionDurationSeconds",
                Kind.INT,
                send=Send.ALWAYS,
                encode=lambda seconds, _: str(seconds or 0),
            ),
            Field("effectiveTime", output=True),
        ),
    ),
    Field(
        "uniformBucketLevelAccess",
        Kind.BOOL,
        rest="iamConfiguration.uniformBucketLevelAccess.enabled",
        computed=True,
        send=Send.ALWAYS,
    ),
    Field(
        "publicAccessPrevention",
        rest="iamConfiguration.publicAccessPrevention",
        computed=True,
        one_of=("inherited", "enforced"),
    ),
    Field("encryption", Kind.BLOCK, fields=(Field("defaultKmsKeyName"),)),
    Field(
        "logging",
        Kind.BLOCK,
        fields=(Field("logBucket", required=True), Field("logObjectPrefix", computed=True)),
    ),
    Field(
        "autoclass",
        Kind.BLOCK,
        fields=(
            Field("enabled", Kind.BOOL, required=True, send=Send.ALWAYS),
            Field("terminalStorageClass", computed=True),
        ),
    ),
    Field("defaultEventBasedHold", Kind.BOOL, send_update=Send.ALWAYS),
    Field("requesterPays", Kind.BOOL, rest="billing.requesterPays", send_update=Send.ALWAYS),
    Field("rpo", computed=True),
)

BUCKET = Bucket(
    Table(
        token="gcp:storage/bucket:Bucket",
        service=STORAGE,
        collection="b",
        item="b/{name}",
        id="{name}",
        create_query={"project": "{project}"},
        client_library=True,
        fields=(
            NAME,
            PROJECT,
            DELETION_POLICY,
            Field(
                "location",
                required=True,
                replaces=True,
                same=lambda one, other: str(one).upper() == str(other).upper(),
            ),
            *_MUTABLE,
            Field(
                "hierarchicalNamespace",
                Kind.BLOCK,
                replaces=True,
                decode=lambda raw: raw or {"enabled": False},
                fields=(Field("enabled", Kind.BOOL, required=True, send=Send.ALWAYS),),
            ),
            Field("forceDestroy", Kind.BOOL, rest=None),
            Field("projectNumber", Kind.INT, output=True),
            Field("selfLink", output=True),
            Field("url", rest=None, output=True),
            Field("timeCreated", output=True),
            Field("updated", output=True),
            Field("enableObjectRetention", Kind.BOOL, rest=None, output=True),
            Field("cors", Kind.BLOCKS, rest=None, output=True),
            Field("customPlacementConfig", Kind.BLOCK, rest=None, output=True),
            Field("ipFilter", Kind.BLOCK, rest=None, output=True),
            Field("retentionPolicy", Kind.BLOCK, rest=None, output=True),
            Field("website", Kind.BLOCK, rest=None, output=True),
        ),
        updates=(Update(tuple(f.name for f in _MUTABLE), changed_only=True),),
    )
)
