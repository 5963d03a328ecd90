"""gcp:storage/bucket:Bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from rehearsal.providers.gcp.field import Kind
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.table import COMPUTE, STORAGE, Update
from rehearsal.providers.plugin.errors import StandInError

_STATES = {"LIVE": True, "ARCHIVED": False}  # ANY is left out
_ACCESS = {"uniformBucketLevelAccess", "publicAccessPrevention"}


class Bucket(Resource):
    """A bucket. It is deleted only if empty, or with `forceDestroy` together with every object in it."""

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Empty bucket-wide permissions have a value even where nobody set one."""
        return {**planned, "uniformBucketLevelAccess": planned.get("uniformBucketLevelAccess") or False}

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the bucket with its project's id, which Compute Engine knows and Cloud Storage doesn't.

        An import's id may be PROJECT/NAME.
        """
        project, _, id_ = id_.rpartition("/")
        outputs = super().read(context, id_, {**prior, "project": project} if project else prior)
        if outputs is None:
            return None
        if not (prior.get("id") or project) or not outputs["project"]:
            number = outputs["projectNumber"]
            described = context.send(COMPUTE, "GET", f"projects/{number}")
            outputs["project"] = described["name"]
        return {**outputs, "url": f"gs://{outputs['name']}"}

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send what changed; both access settings together, and null for labels that are to go."""
        changed, planned = change.changed, change.planned
        if changed & _ACCESS:
            changed = changed | _ACCESS
        if "labels" in changed:
            gone = dict.fromkeys(
                (change.state.get("pulumiLabels") or {}).keys() - planned["pulumiLabels"].keys()
            )
            planned = {**planned, "effectiveLabels": {**planned["effectiveLabels"], **gone}}
        super().patch(context, request, replace(change, planned=planned, changed=changed))

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Look for caches and objects, delete those with `force_destroy`, then the bucket."""
        item = self.item(known)
        context.send(STORAGE, "GET", f"{item}/anywhereCaches/")
        while objects := self.call(context, "GET", f"{item}/o", known, query={"versions": "true"}).get(
            "items"
        ):
            if not known.get("forceDestroy"):
                raise StandInError(
                    f"Error trying to delete bucket {known['name']} containing objects"
                    " without `force_destroy` set to true"
                )
            for object_ in objects:
                path = f"{item}/o/{quote(object_['name'], safe='')}"
                self.call(context, "DELETE", path, known, query={"generation": object_["generation"]})
        self.call(context, "DELETE", item, known)


def _rules(rules: list[dict[str, Any]] | None, _planned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lifecycle rules without the nulls that withState ANY leaves behind."""
    return [
        {**rule, "condition": {k: v for k, v in rule["condition"].items() if v is not None}}
        for rule in rules or ()
    ]


BUCKET = Bucket(
    "gcp:storage/bucket:Bucket",
    STORAGE,
    "b/{name}",
    (Update(changed_only=True),),
    {
        "location": {"same": lambda new, old: str(new).upper() == str(old).upper()},  # Terraform's StateFunc
        "forceDestroy": "local",
        "lifecycleRules": {"is": "at=lifecycle.rule always", "encode": _rules},
        "*.withState": {
            "is": "at=isLive",
            "encode": lambda state, _: _STATES.get(state),
            "decode": lambda live: "ANY" if live is None else "LIVE" if live else "ARCHIVED",
        },
        "*.sendAgeIfZero *.sendDaysSince* *.sendNumNewerVersionsIfZero": "local only=false",
        "versioning.enabled autoclass.enabled hierarchicalNamespace.enabled": "always",
        "softDeletePolicy.retentionDurationSeconds": "always",
        "softDeletePolicy.effectiveTime": "never",
        "uniformBucketLevelAccess": "at=iamConfiguration.uniformBucketLevelAccess.enabled always",
        "publicAccessPrevention": "at=iamConfiguration.publicAccessPrevention",
        "defaultEventBasedHold": "updated",
        "requesterPays": "at=billing.requesterPays updated",
        "encryption logging": "updated",  # null where it is gone
        "hierarchicalNamespace": {"decode": lambda raw: raw or {"enabled": False}},
        "projectNumber": {"kind": Kind.INT},
        "url": "local",
        "cors customPlacementConfig enableObjectRetention ipFilter retentionPolicy website": "refused",
    },
    id="{name}",
    create_query={"project": "{project}"},
    client_library=True,
    looks=1,
)
