"""Cloud Scheduler: jobs. Their time never comes: no attempt is made.

https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs
"""

from __future__ import annotations

import re
import zoneinfo

from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated, one_of, topic, wrong_state
from rehearsal.cloud.service import bad_request

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_NAMES = {
    name: str(n)
    for n, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_NAMES |= {name: str(n) for n, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_PART = re.compile(r"(?:\*|(\d+)(?:-(\d+))?)(?:/([1-9]\d*))?")


def is_cron(text: str) -> bool:
    """Whether it is in the unix-cron format (https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules)."""
    fields = [
        re.sub("[a-z]{3}", lambda found: _NAMES.get(found[0], "?"), each) for each in text.lower().split()
    ]
    return len(fields) == len(_RANGES) and all(
        (found := _PART.fullmatch(part)) and all(low <= int(n) <= high for n in found.groups()[:2] if n)
        for each, (low, high) in zip(fields, _RANGES, strict=True)
        for part in each.split(",")
    )


def _scheduled(change: Change) -> None:
    schedule, zone = change.body.get("schedule", ""), change.body["timeZone"]
    if not is_cron(schedule):
        if schedule.startswith("every "):  # of App Engine: https://cloud.google.com/appengine/docs/cron
            not_emulated("schedule")(change)
        raise bad_request("Schedule or time zone is invalid.")
    if zone not in zoneinfo.available_timezones():
        raise bad_request("Schedule or time zone is invalid.")
    pubsub, http = change.body.get("pubsubTarget"), change.body.get("httpTarget")
    if pubsub and not (pubsub.get("data") or pubsub.get("attributes")):
        raise bad_request("PubsubTarget.data or PubsubTarget.attributes must be set.")
    if http:
        if not re.match(r"https?://[^/\s]+", http.get("uri", "")):
            raise bad_request("HttpTarget.uri must be a valid URI that begins with http:// or https://.")
        http.setdefault("httpMethod", "POST")
        change.body.setdefault("attemptDeadline", "180s")
    change.body["userUpdateTime"] = change.world.clock.rfc3339()


def _to(state: str, *before: str) -> Verb:
    def act(change: Change) -> None:
        wrong_state(change, "state", before)
        change.body["state"] = state

    return Verb(act)


ENTRY = Entry(
    "cloudscheduler",
    ("v1",),
    (
        Collection(
            "cloudscheduler.projects.locations.jobs",
            permissions={"resume": "cloudscheduler.jobs.enable"},
            qualified=True,
            id_field="name",
            pattern=r"[-\w]{1,500}",
            defaults={
                "timeZone": "Etc/UTC",
                "retryConfig": {"maxRetryDuration": "0s", "minBackoffDuration": "5s"}
                | {"maxBackoffDuration": "3600s", "maxDoublings": 5},
            },
            ready={"state": "ENABLED"},
            references=(
                topic("pubsubTarget.topicName"),
                acts_as("httpTarget.oauthToken.serviceAccountEmail"),
                acts_as("httpTarget.oidcToken.serviceAccountEmail"),
            ),
            check=every(
                one_of("pubsubTarget", "httpTarget", "appEngineHttpTarget"),
                not_emulated("appEngineHttpTarget"),
                _scheduled,
            ),
            verbs={"pause": _to("PAUSED", "ENABLED"), "resume": _to("ENABLED", "PAUSED", "ENABLED")},
        ),
    ),
    package="google.cloud.scheduler.v1",
    roles={
        "roles/cloudscheduler.admin": ("cloudscheduler.*",),
        "roles/cloudscheduler.jobRunner": ("cloudscheduler.jobs.run",),
        "roles/cloudscheduler.viewer": ("cloudscheduler.*.get", "cloudscheduler.*.list"),
    },
)
