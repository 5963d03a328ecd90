"""Eventarc: triggers. Those of new objects deliver (rehearsal/cloud/services/eventarc/deliveries.py).

https://cloud.google.com/eventarc/docs/reference/rest/v1/projects.locations.triggers
"""

from __future__ import annotations

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import NAME, acts_as, every, not_emulated, one_of, topic
from rehearsal.cloud.core.errors import ApiError, NotEmulatedError, bad_request
from rehearsal.cloud.iam.iam import agent
from rehearsal.cloud.services.eventarc.deliveries import FINALIZED

_PUBLISHED = "google.cloud.pubsub.topic.v1.messagePublished"
_STORAGE = "google.cloud.storage.object.v1."
# What its agents do with the permissions of their roles.
_AGENT_NEEDS, _STORAGE_NEEDS = "pubsub.subscriptions.create", "pubsub.topics.publish"
_BUCKET_NEEDS = "storage.buckets.get"


def _routes(change: Change) -> None:
    """Check a trigger: one type of events, its own or the user's topic, an existing destination."""
    filters = {
        entry.get("attribute"): entry.get("value", "") for entry in change.body.get("eventFilters", ())
    }
    if len(filters) < len(change.body.get("eventFilters", ())) or "type" not in filters:
        raise bad_request("The request was invalid: exactly one event filter must have the attribute 'type'.")
    to, kind = change.body["destination"], filters["type"]
    if not change.body.get("serviceAccount") and kind != _PUBLISHED:
        raise bad_request("The request was invalid: service_account is required.")
    if run := to.get("cloudRun"):
        place = f"projects/{change.world.project}/locations/{run['region']}"
        change.resources.find(f"{place}/services/{run['service']}")
    if kind.startswith(_STORAGE):
        _of_a_bucket(change, kind, filters.get("bucket", ""))
    if not change.old and kind == FINALIZED:
        _require_agents(change, filters["bucket"])
        change.finish.append(lambda: change.world.triggers.add(change.name))
    change.body.setdefault("eventDataContentType", "application/json")


def _of_a_bucket(change: Change, kind: str, bucket: str) -> None:
    """ApiError 400 unless the bucket is there, and where the trigger is."""
    if kind != FINALIZED:
        raise NotEmulatedError(f"A trigger of {kind}")
    if not bucket:
        raise bad_request("The request was invalid: an event filter must have the attribute 'bucket'.")
    existing = change.world.find(f"projects/_/buckets/{bucket}")
    if existing is None:
        raise bad_request(f'The request was invalid: Bucket "{bucket}" not found.')
    place, location = change.name.split("/")[3], existing["location"].lower()
    if location != place:
        why = f"Bucket location {location} and trigger location {place} must match."
        raise bad_request(f"The request was invalid: {why}")


def _require_agents(change: Change, bucket: str) -> None:
    """ApiError as long as an agent lacks its role.

    https://cloud.google.com/eventarc/docs/all-roles-permissions; of the bucket:
    https://github.com/google-github-actions/deploy-cloud-functions/issues/461 (its status isn't shown there)
    """
    iam, state = change.resources.iam, 'Invalid resource state for "": '
    if not iam.allowed(agent(change.world, "eventarc"), _AGENT_NEEDS, iam.project):
        raise ApiError(
            400,
            "FAILED_PRECONDITION",
            f"{state}Permission denied while using the Eventarc Service Agent. If you recently started to "
            "use Eventarc, it may take a few minutes before all necessary permissions are propagated to the "
            "Service Agent. Otherwise, verify that it has Eventarc Service Agent role.",
        )
    if not iam.allowed(agent(change.world, "eventarc"), _BUCKET_NEEDS, f"projects/_/buckets/{bucket}"):
        raise ApiError(
            403,
            "PERMISSION_DENIED",
            f'Permission "{_BUCKET_NEEDS}" denied on "Bucket \\"{bucket}\\" could not be validated. Please '
            'verify that the bucket exists and that the Eventarc service account has permission."',
        )
    if not iam.allowed(agent(change.world, "storage"), _STORAGE_NEEDS, iam.project):
        raise ApiError(
            400,
            "FAILED_PRECONDITION",
            f"{state}The Cloud Storage service account for your bucket is unable to publish to Cloud Pub/Sub "
            "topics in the specified project. To use GCS CloudEvent triggers, the GCS service account "
            "requires the Pub/Sub Publisher (roles/pubsub.publisher) IAM role in the specified project.",
        )


def _gone(change: Change) -> None:
    change.world.triggers.discard(change.name)


ENTRY = Entry(
    "eventarc",
    ("v1",),
    (
        Collection(
            "eventarc.projects.locations.triggers",
            shows_deleted=True,
            pattern=NAME,
            seconds=15.0,
            immutable=("transport",),
            references=(
                acts_as("serviceAccount"),
                topic("transport.pubsub.topic"),
            ),
            check=every(
                one_of(*(f"destination.{to}" for to in ("workflow", "cloudRun", "gke", "httpEndpoint"))),
                not_emulated(
                    "channel",
                    "destination.gke",
                    "destination.httpEndpoint",
                    "destination.networkConfig",
                    "destination.workflow",
                ),
                _routes,
            ),
            deleting=_gone,
        ),
    ),
    package="google.cloud.eventarc.v1",
)
