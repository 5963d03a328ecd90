"""New objects reach workflows through triggers; duplicates, delays and losses are a scenario's."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from boxed_front import PROJECT, Boxed, L, P

from tests.limits import HANG_S

pytestmark = pytest.mark.root
TRIGGERS = f"eventarc.googleapis.com/v1/{L}/triggers"
WORKFLOWS, EXECUTIONS = (
    f"workflows.googleapis.com/v1/{L}/workflows",
    f"workflowexecutions.googleapis.com/v1/{L}",
)
NUMBER = "123456789012"
EVENTARC = f"service-{NUMBER}@gcp-sa-eventarc.iam.gserviceaccount.com"
STORAGE = f"service-{NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
DELIVER = "eventarc.events.deliver"
SOURCE = "main:\n  params: [event]\n  steps:\n    - done: {return: '${event.data.name}'}\n"


def trigger(**more: Any) -> Any:
    kind = "google.cloud.storage.object.v1.finalized"
    filters = [{"attribute": "type", "value": kind}, {"attribute": "bucket", "value": "raw"}]
    return {
        "name": f"{L}/triggers/new-object",
        "eventFilters": filters,
        "destination": {"workflow": f"{L}/workflows/handles"},
        "serviceAccount": f"trigger@{PROJECT}.iam.gserviceaccount.com",
        **more,
    }


@pytest.fixture(scope="module", autouse=True)
def made(boxed: Boxed) -> None:
    """A workflow, and the account of the trigger; the agents get their roles in the first test."""
    runner = boxed.account("runner")
    boxed.account("trigger", "roles/eventarc.eventReceiver", "roles/workflows.invoker")
    body = {"sourceContents": SOURCE, "serviceAccount": runner}
    boxed.done("workflows.googleapis.com/v1", boxed.answer("POST", f"{WORKFLOWS}?workflowId=handles", body))


def identity(boxed: Boxed) -> str:
    """Google makes Eventarc's agent; its address."""
    url = f"serviceusage.googleapis.com/v1beta1/{P}/services/eventarc.googleapis.com:generateServiceIdentity"
    return str(
        boxed.done("serviceusage.googleapis.com/v1beta1", boxed.answer("POST", url, {}))["response"]["email"]
    )


def executions(boxed: Boxed, name: str, count: int, within_s: float = HANG_S) -> list[str]:
    """The results of the executions that an object's events have started, once there are so many."""
    end = time.monotonic() + within_s
    while True:
        listed = boxed.answer("GET", f"{EXECUTIONS}/workflows/handles/executions?view=FULL").get(
            "executions", []
        )
        items = [item for item in listed if json.loads(item["argument"])["data"]["name"] == name]
        if len(items) >= count and all(item["state"] != "ACTIVE" for item in items):
            return [item.get("result", item["state"]) for item in items]
        assert time.monotonic() < end, f"{len(items)} executions for {name}"
        time.sleep(0.05)


def fault(boxed: Boxed, what: Any, path: str = "", times: int = 1) -> str:
    return boxed.cloud.faults.add({"match": {"method": DELIVER}, "times": times, "what": what})


def test_a_trigger_needs_both_agents_with_their_roles(boxed: Boxed) -> None:
    url = f"{TRIGGERS}?triggerId=new-object"
    early = boxed.send("POST", url, trigger())
    assert (early.status, b"Eventarc Service Agent" in early.body) == (400, True)
    policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": [f"serviceAccount:{EVENTARC}"]}]}}
    missing = boxed.send("POST", f"cloudresourcemanager.googleapis.com/v1/{P}:setIamPolicy", policy)
    assert (missing.status, b"does not exist" in missing.body) == (400, True)
    assert identity(boxed) == EVENTARC
    boxed.grant(P, "roles/eventarc.serviceAgent", f"serviceAccount:{EVENTARC}")
    silent = boxed.send("POST", url, trigger())
    assert (silent.status, b"roles/pubsub.publisher" in silent.body) == (400, True)
    boxed.grant(P, "roles/pubsub.publisher", f"serviceAccount:{STORAGE}")
    boxed.done("eventarc.googleapis.com/v1", boxed.answer("POST", url, trigger()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"eventFilters": trigger()["eventFilters"][:1]}, "the attribute 'bucket'"),
        (
            {"eventFilters": [trigger()["eventFilters"][0], {"attribute": "bucket", "value": "no"}]},
            "not found",
        ),
    ],
)
def test_a_trigger_that_leads_nowhere_is_refused(boxed: Boxed, change: Any, reason: str) -> None:
    reply = boxed.send("POST", f"{TRIGGERS}?triggerId=wrong", trigger(name=f"{L}/triggers/wrong", **change))
    assert (reply.status, reason in reply.body.decode()) == (400, True), reply.body


def test_a_new_object_starts_one_execution_with_its_event(boxed: Boxed) -> None:
    boxed.upload("in%2Fa.txt", b"text")
    assert executions(boxed, "in/a.txt", 1) == ['"in/a.txt"']
    (result,) = boxed.answer("GET", f"{EXECUTIONS}/workflows/handles/executions?view=FULL")["executions"]
    event = json.loads(result["argument"])
    assert (event["type"], event["bucket"], event["subject"], event["data"]["size"]) == (
        "google.cloud.storage.object.v1.finalized", "raw", "objects/in/a.txt", "4",
    )  # fmt: skip
    assert event["data"]["generation"].isdigit()


def test_a_delivery_whose_answer_is_lost_is_made_twice(boxed: Boxed) -> None:
    rule = fault(boxed, {"lost_answer": True})
    boxed.upload("twice.txt", b"x")
    assert executions(boxed, "twice.txt", 2) == ['"twice.txt"'] * 2
    assert boxed.cloud.faults.lift(rule) == 1


def test_a_delivery_that_fails_comes_late(boxed: Boxed) -> None:
    rule, clock = fault(boxed, {"status": 503}, times=2), boxed.cloud.world.clock
    began = clock.now()
    boxed.upload("late.txt", b"x")
    assert executions(boxed, "late.txt", 1) == ['"late.txt"']
    assert clock.now() - began >= 30
    assert boxed.cloud.faults.lift(rule) == 2


def test_a_lost_event_never_comes_and_the_next_one_does(boxed: Boxed) -> None:
    rule = fault(boxed, {"lost": True})
    boxed.upload("lost.txt", b"x")
    while boxed.cloud.faults.report()[-1]["observed"] == 0:
        time.sleep(0.02)
    boxed.upload("next.txt", b"x")
    executions(boxed, "next.txt", 1)
    assert executions(boxed, "lost.txt", 0) == []
    assert boxed.cloud.faults.lift(rule) == 1


TRIGGER = f"trigger@{PROJECT}.iam.gserviceaccount.com"


@pytest.mark.parametrize(("role", "account"), [
    ("roles/eventarc.eventReceiver", TRIGGER),
    ("roles/workflows.invoker", TRIGGER),
    ("roles/eventarc.serviceAgent", EVENTARC),
    ("roles/pubsub.publisher", STORAGE),
])  # fmt: skip
def test_without_a_role_nothing_is_delivered_until_it_is_granted(
    boxed: Boxed, role: str, account: str
) -> None:
    member, name = f"serviceAccount:{account}", f"{role[-7:]}.txt"

    async def revoke() -> None:
        policy = boxed.cloud.iam.policy(P)
        left = [
            binding
            for binding in policy["bindings"]
            if (binding["role"], binding["members"]) != (role, [member])
        ]
        assert len(left) == len(policy["bindings"]) - 1
        boxed.cloud.iam.set_policy(P, {**policy, "bindings": left})

    boxed.call(revoke())
    boxed.upload(name, b"x")
    end = time.monotonic() + HANG_S
    while True:
        tried = [
            request
            for request in boxed.cloud.requests.since(0)["requests"]
            if request["method_id"] == DELIVER
        ]
        if tried and tried[-1]["status"] == 403:
            break
        assert time.monotonic() < end
        time.sleep(0.02)
    assert executions(boxed, name, 0) == []
    boxed.grant(P, role, member)
    assert executions(boxed, name, 1) == [f'"{name}"']


def test_a_deleted_trigger_delivers_nothing(boxed: Boxed) -> None:
    boxed.done("eventarc.googleapis.com/v1", boxed.answer("DELETE", f"{TRIGGERS}/new-object"))
    boxed.upload("after.txt", b"x")
    boxed.call(boxed.cloud.world.clock.sleep(10))
    assert executions(boxed, "after.txt", 0) == []


def test_only_an_event_can_be_lost(boxed: Boxed) -> None:
    with pytest.raises(Exception, match="only deliveries can be lost"):
        boxed.cloud.faults.add({"match": {"method": "storage.*"}, "what": {"lost": True}})
