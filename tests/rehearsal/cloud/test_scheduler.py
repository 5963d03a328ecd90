"""Jobs of Cloud Scheduler: when they are due, what they send and as whom, and what an attempt leaves."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cloud_front import PROJECT, CloudFront

from rehearsal.cloud.services.scheduler import cron
from tests.limits import until

P = f"projects/{PROJECT}"
JOBS = f"cloudscheduler.googleapis.com/v1/{P}/locations/us-east4/jobs"
EMAIL = f"scheduler@{PROJECT}.iam.gserviceaccount.com"
TOPIC = f"{P}/topics/scheduled"


def when(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "due"),
    [
        ("* * * * *", "UTC", "2026-11-20T10:00:30", "2026-11-20T10:01"),
        ("0 3 * * *", "UTC", "2026-11-20T03:00", "2026-11-21T03:00"),
        ("*/15 9-17 * * mon-fri", "UTC", "2026-11-20T17:50", "2026-11-23T09:00"),
        ("0 0 1 * *", "UTC", "2026-12-02T00:00", "2027-01-01T00:00"),
        ("0 0 13 * fri", "UTC", "2026-11-14T00:00", "2026-11-20T00:00"),  # a Friday
        ("0 0 13 * fri", "UTC", "2026-12-12T00:00", "2026-12-13T00:00"),  # or a 13th
        ("0 0 13 * *", "UTC", "2026-11-14T00:00", "2026-12-13T00:00"),
        ("0 0 29 2 *", "UTC", "2026-11-20T00:00", "2028-02-29T00:00"),
        ("30 8 * * 7", "UTC", "2026-11-20T00:00", "2026-11-22T08:30"),
        ("0 9 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T09:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-30T02:30"),  # skipped by summer time
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T02:30"),  # and repeated in autumn
    ],
)
def test_a_schedule_is_due_in_its_zone(schedule: str, zone: str, after: str, due: str) -> None:
    parse = cron.parse(schedule)
    assert parse is not None
    assert parse.after(when(after, zone), zone) == when(due, zone)


@pytest.mark.parametrize(
    "schedule",
    ["* * * *", "60 * * * *", "*/0 * * * *", "* * 0 * *", "* * * foo *", "5-70 * * * *", "a b c d e"],
)
def test_a_schedule_that_is_no_cron_is_none(schedule: str) -> None:
    assert cron.parse(schedule) is None


def test_a_schedule_can_be_one_that_never_is() -> None:
    parse = cron.parse("0 0 30 2 *")
    assert parse is not None
    assert parse.after(0, "UTC") is None


@pytest.fixture(scope="module", autouse=True)
def account(cloud: CloudFront) -> None:
    cloud.request("POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", {"accountId": "scheduler"})
    cloud.request("PUT", f"pubsub.googleapis.com/v1/{TOPIC}", {})
    body = {"topic": TOPIC}
    cloud.request("PUT", f"pubsub.googleapis.com/v1/{P}/subscriptions/scheduled", body)


def grant(cloud: CloudFront, role: str | None) -> None:
    member = f"serviceAccount:{EMAIL}"
    policy = cloud.iam.policy(P)
    others = [binding for binding in policy["bindings"] if member not in binding["members"]]
    bindings = [*others, *([{"role": role, "members": [member]}] if role else [])]
    cloud.iam.set_policy(P, {**policy, "bindings": bindings})


def job(name: str, schedule: str = "0 3 * * *", **more: Any) -> Any:
    """A job that creates a topic of its name."""
    http = {
        "uri": f"https://pubsub.googleapis.com/v1/{P}/topics/of-{name}",
        "httpMethod": "PUT",
        "headers": {"Content-Type": "application/json"},
        "body": base64.b64encode(b"{}").decode(),
        "oauthToken": {"serviceAccountEmail": EMAIL},
    }
    return {"name": f"{P}/locations/us-east4/jobs/{name}", "schedule": schedule, "httpTarget": http, **more}


def attempted(cloud: CloudFront, name: str) -> Any:
    """The job, once an attempt was made."""

    def read() -> Any:
        result = cloud.request("GET", f"{JOBS}/{name}").json
        return result if "lastAttemptTime" in result else None

    return until(read)


def test_a_job_is_attempted_when_its_time_comes_as_its_account(cloud: CloudFront) -> None:
    grant(cloud, "roles/pubsub.editor")
    with cloud.stopped_clock():
        assert cloud.request("POST", JOBS, job("each", "* * * * *")).status == 200
        cloud.call(cloud.world.clock.jump(60))
        result = attempted(cloud, "each")
        assert cloud.request("DELETE", f"{JOBS}/each").status == 200
    assert (result["status"], f"{P}/topics/of-each" in cloud.world.directory) == ({}, True)
    assert result["scheduleTime"] > result["lastAttemptTime"]
    requests = [
        request for request in cloud.requests.since(0)["requests"] if request["path"].endswith("/of-each")
    ]
    assert [request["principal"] for request in requests] == [EMAIL]


def test_an_attempt_without_the_role_leaves_the_code_and_a_line_in_the_log(cloud: CloudFront) -> None:
    grant(cloud, None)
    cloud.request("POST", JOBS, job("refused"))
    assert "lastAttemptTime" not in cloud.request("GET", f"{JOBS}/refused").json
    assert cloud.request("POST", f"{JOBS}/refused:run", {}).status == 200
    assert attempted(cloud, "refused")["status"] == {"code": 7}
    body = {"resourceNames": [P], "filter": 'resource.labels.job_id="refused" AND severity="ERROR"'}
    (entry,) = cloud.request("POST", "logging.googleapis.com/v2/entries:list", body).json["entries"]
    assert entry["jsonPayload"]["status"] == "PERMISSION_DENIED"
    assert "pubsub.topics.create" in entry["jsonPayload"]["debugInfo"]


def test_a_failed_attempt_is_made_again_as_often_as_the_job_says(cloud: CloudFront) -> None:
    grant(cloud, "roles/pubsub.editor")
    match = {"method": "pubsub.projects.topics.create", "principal": EMAIL, "path": "of-retried"}
    rule = cloud.faults.add({"match": match, "times": 2, "what": {"status": 503}})
    cloud.request("POST", JOBS, job("retried", retryConfig={"retryCount": 2}))
    cloud.request("POST", f"{JOBS}/retried:run", {})
    until(lambda: f"{P}/topics/of-retried" in cloud.world.directory)
    assert cloud.faults.lift(rule) == 2


def test_a_paused_job_is_not_attempted_and_a_resumed_one_is(cloud: CloudFront) -> None:
    grant(cloud, "roles/pubsub.editor")
    with cloud.stopped_clock():
        cloud.request("POST", JOBS, job("paused", "* * * * *"))
        assert cloud.request("POST", f"{JOBS}/paused:pause", {}).json["state"] == "PAUSED"
        assert cloud.request("POST", f"{JOBS}/paused:pause", {}).status == 400
        cloud.call(cloud.world.clock.jump(200))
        assert "lastAttemptTime" not in cloud.request("GET", f"{JOBS}/paused").json
        cloud.request("POST", f"{JOBS}/paused:resume", {})
        cloud.call(cloud.world.clock.jump(60))
        assert attempted(cloud, "paused")["status"] == {}
        cloud.request("DELETE", f"{JOBS}/paused")


def test_a_job_publishes_a_message(cloud: CloudFront) -> None:
    target = {"topicName": TOPIC, "data": base64.b64encode(b"go").decode()}
    body = {"name": f"{P}/locations/us-east4/jobs/says", "schedule": "0 3 * * *", "pubsubTarget": target}
    assert cloud.request("POST", JOBS, body).status == 200
    cloud.request("POST", f"{JOBS}/says:run", {})
    attempted(cloud, "says")
    pull = f"pubsub.googleapis.com/v1/{P}/subscriptions/scheduled:pull"
    (message,) = cloud.request("POST", pull, {"maxMessages": 5}).json["receivedMessages"]
    assert base64.b64decode(message["message"]["data"]) == b"go"
