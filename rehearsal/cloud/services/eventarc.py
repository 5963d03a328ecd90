"""Eventarc: triggers. No events go through them, and no subscription is made that would carry some.

https://cloud.google.com/eventarc/docs/reference/rest/v1/projects.locations.triggers
"""

from __future__ import annotations

from rehearsal.cloud.collections import KEEP, Change, Collection, Entry, Reference
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated, one_of, topic
from rehearsal.cloud.service import bad_request

_PUBLISHED = "google.cloud.pubsub.topic.v1.messagePublished"


def _routes(change: Change) -> None:
    """One type of events, from one topic of its own or the user's, to something that is there."""
    types = [one["value"] for one in change.body.get("eventFilters", ()) if one.get("attribute") == "type"]
    if len(types) != 1:
        raise bad_request("The request was invalid: exactly one event filter must have the attribute 'type'.")
    to = change.body["destination"]
    if not change.body.get("serviceAccount") and ("workflow" in to or types[0] != _PUBLISHED):
        raise bad_request("The request was invalid: service_account is required.")
    if run := to.get("cloudRun"):
        place = f"projects/{change.world.project}/locations/{run['region']}"
        change.resources.find(f"{place}/services/{run['service']}")
    change.body.setdefault("eventDataContentType", "application/json")


ENTRY = Entry(
    "eventarc",
    ("v1",),
    (
        Collection(
            "eventarc.projects.locations.triggers",
            shows_deleted=True,
            pattern="[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?",
            seconds=15.0,
            immutable=("transport",),
            references=(
                acts_as("serviceAccount"),
                Reference(
                    "destination.workflow", ("workflows.projects.locations.workflows",), on_delete=KEEP
                ),
                topic("transport.pubsub.topic"),
            ),
            check=every(
                one_of(*(f"destination.{to}" for to in ("workflow", "cloudRun", "gke", "httpEndpoint"))),
                not_emulated(
                    "channel", "destination.gke", "destination.httpEndpoint", "destination.networkConfig"
                ),
                _routes,
            ),
        ),
    ),
    package="google.cloud.eventarc.v1",
    roles={
        "roles/eventarc.admin": ("eventarc.*",),
        "roles/eventarc.developer": ("!*.setIamPolicy", "eventarc.triggers.*", "eventarc.operations.*"),
        "roles/eventarc.viewer": ("eventarc.*.get", "eventarc.*.list", "eventarc.*.getIamPolicy"),
        "roles/eventarc.eventReceiver": ("eventarc.events.receiveEvent",),
    },
)
