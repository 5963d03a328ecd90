"""Cloud Scheduler: jobs, attempted by the cloud's virtual clock.

https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs
"""

from __future__ import annotations

import base64
import re
import zoneinfo

from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated, one_of, topic, wrong_state
from rehearsal.cloud.core.clock import rfc3339
from rehearsal.cloud.core.errors import JsonObject, bad_request
from rehearsal.cloud.core.operations import RPC_CODES
from rehearsal.cloud.core.runtime import OAUTH2, OIDC, HttpRequest
from rehearsal.cloud.services.pubsub import publish
from rehearsal.cloud.services.scheduler import cron

# https://cloud.google.com/apis/design/errors#handling_errors
_CODES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    409: "ALREADY_EXISTS", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
}  # fmt: skip


def _scheduled(change: Change) -> None:
    schedule, zone = change.body.get("schedule", ""), change.body["timeZone"]
    if cron.parse(schedule) is None:
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
    change.finish.append(lambda: _plan(change))


def _plan(change: Change) -> None:
    """Follow the current schedule in place of an earlier one."""
    _stop(change)
    change.private["task"] = change.world.start(_follow(change))


def _stop(change: Change) -> None:
    if (task := change.private.pop("task", None)) is not None:
        task.cancel()


async def _follow(change: Change) -> None:
    """Make one attempt after the other, as long as the job is enabled."""
    clock = change.world.clock
    while (job := change.world.directory.get(change.name)) and job["state"] == "ENABLED":
        due = cron.parse(job["schedule"])
        at = due.after(clock.now(), job["timeZone"]) if due else None
        if at is None:
            return
        job["scheduleTime"] = rfc3339(at)
        await clock.sleep(at - clock.now())
        if change.name in change.world.directory:
            await _attempts(change, at)


async def _attempts(change: Change, at: float) -> None:
    """Make an attempt, and the retries that the job's configuration allows."""
    job, clock = change.world.directory[change.name], change.world.clock
    retry = job["retryConfig"]
    pause_s = float(retry["minBackoffDuration"].removesuffix("s"))
    for left in reversed(range(int(retry.get("retryCount", 0)) + 1)):
        code, detail = await _attempt(change, job, at)
        job |= {"lastAttemptTime": clock.rfc3339(), "status": {"code": RPC_CODES[code]} if code else {}}
        _log(change, job, code, detail)
        if not code or not left:
            return
        await clock.sleep(pause_s)
        pause_s = min(pause_s * 2, float(retry["maxBackoffDuration"].removesuffix("s")))


async def _attempt(change: Change, job: JsonObject, at: float) -> tuple[str, str]:
    """Return the canonical name of an error, or "", and the target's answer."""
    if target := job.get("pubsubTarget"):
        message = {key: target[key] for key in ("data", "attributes") if key in target}
        if target["topicName"] not in change.world.directory:
            return "NOT_FOUND", target["topicName"]
        publish(change.world, target["topicName"], [message])
        return "", ""
    http = job["httpTarget"]
    kind = next((kind for kind in ("oauthToken", "oidcToken") if kind in http), "")
    account = http[kind]["serviceAccountEmail"] if kind else ""
    headers = {
        "User-Agent": "Google-Cloud-Scheduler",
        "X-CloudScheduler": "true",
        "X-CloudScheduler-JobName": change.id,
        "X-CloudScheduler-ScheduleTime": rfc3339(at),
        **http.get("headers", {}),
    }
    request = HttpRequest(
        http["httpMethod"], http["uri"], headers, base64.b64decode(http.get("body", "")) or None,
        {"oauthToken": OAUTH2, "oidcToken": OIDC}.get(kind, ""),
        http.get(kind, {}).get("audience") or http["uri"], float(job["attemptDeadline"].removesuffix("s")),
    )  # fmt: skip
    try:
        reply = await change.runtime.caller.send(request, account)
    except TimeoutError:
        return "DEADLINE_EXCEEDED", ""
    except PermissionError as error:
        return "PERMISSION_DENIED", str(error)
    except ConnectionError as error:
        return "UNAVAILABLE", str(error)
    ok = 200 <= reply.status < 300
    return "" if ok else _CODES.get(reply.status, "UNKNOWN"), reply.body.decode(errors="replace")[:500]


def _log(change: Change, job: JsonObject, code: str, detail: str) -> None:
    """Log an attempt (https://cloud.google.com/scheduler/docs/logging)."""
    project, location = change.world.project, change.name.split("/")[-3]
    payload = {
        "@type": "type.googleapis.com/google.cloud.scheduler.logging.AttemptFinished",
        "jobName": job["name"],
        "status": code or "OK",
        "targetType": "PUB_SUB" if "pubsubTarget" in job else "HTTP",
        **({"debugInfo": detail} if code else {}),
    }
    labels = {"project_id": project, "location": location, "job_id": change.id}
    change.runtime.write_log(
        {
            "logName": f"projects/{project}/logs/cloudscheduler.googleapis.com%2Fexecutions",
            "resource": {"type": "cloud_scheduler_job", "labels": labels},
            "severity": "ERROR" if code else "INFO",
            "jsonPayload": payload,
        }
    )


def _run_now(change: Change) -> JsonObject:
    """Serve jobs.run: an attempt outside the schedule, also of a paused job."""
    change.world.spawn(_attempts(change, change.world.clock.now()))
    return change.old


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
            deleting=_stop,
            verbs={
                "pause": _to("PAUSED", "ENABLED"),
                "resume": _to("ENABLED", "PAUSED", "ENABLED"),
                "run": Verb(_run_now),
            },
        ),
    ),
    package="google.cloud.scheduler.v1",
)
