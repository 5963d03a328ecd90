"""New objects reach functions through triggers; duplicates, delays and losses are a scenario's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from boxed_front import PROJECT, REGION, Boxed, L, P
from boxed_functions import deploy, opened, source

from rehearsal.cloud.core.runtime import Reply
from tests.limits import until

pytestmark = pytest.mark.root
TRIGGERS = f"eventarc.googleapis.com/v1/{L}/triggers"
NUMBER = "123456789012"
EVENTARC = f"service-{NUMBER}@gcp-sa-eventarc.iam.gserviceaccount.com"
STORAGE = f"service-{NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
DELIVER = "eventarc.events.deliver"
KIND = "google.cloud.storage.object.v1.finalized"
MAIN = """
import json

def check(request):
    headers = {key[3:].lower(): value for key, value in request.headers.items() if key.startswith("Ce-")}
    print(json.dumps({**headers, "data": request.get_json()}), flush=True)
    return "", 204
"""


def trigger(**more: Any) -> Any:
    filters = [{"attribute": "type", "value": KIND}, {"attribute": "bucket", "value": "raw"}]
    return {
        "name": f"{L}/triggers/new-object",
        "eventFilters": filters,
        "destination": {"cloudRun": {"service": "handles", "region": REGION}},
        "serviceAccount": f"trigger@{PROJECT}.iam.gserviceaccount.com",
        **more,
    }


@pytest.fixture(scope="module")
def boxed() -> Iterator[Boxed]:
    """A function, and the account of the trigger."""
    with opened() as front:
        front.account("trigger", "roles/eventarc.eventReceiver", "roles/run.invoker")
        source(front, "f.zip", MAIN)
        operation = deploy(front, "handles", ingressSettings="ALLOW_INTERNAL_ONLY")
        assert "error" not in operation, operation
        yield front


def identity(boxed: Boxed) -> str:
    """Google makes Eventarc's agent; its address."""
    url = f"serviceusage.googleapis.com/v1beta1/{P}/services/eventarc.googleapis.com:generateServiceIdentity"
    return str(
        boxed.done("serviceusage.googleapis.com/v1beta1", boxed.answer("POST", url, {}))["response"]["email"]
    )


@pytest.fixture(scope="module", autouse=True)
def refusals(boxed: Boxed) -> dict[str, Reply]:
    """Create the trigger of all tests; return the refusals on the way there."""
    url = f"{TRIGGERS}?triggerId=new-object"
    replies = {"no agents": boxed.send("POST", url, trigger())}
    policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": [f"serviceAccount:{EVENTARC}"]}]}}
    replies["a role for none"] = boxed.send(
        "POST", f"cloudresourcemanager.googleapis.com/v1/{P}:setIamPolicy", policy
    )
    assert identity(boxed) == EVENTARC
    boxed.grant(P, "roles/pubsub.editor", f"serviceAccount:{EVENTARC}")
    replies["no role"] = boxed.send("POST", url, trigger())
    boxed.grant(P, "roles/eventarc.serviceAgent", f"serviceAccount:{EVENTARC}")
    replies["no publisher"] = boxed.send("POST", url, trigger())
    answer = boxed.answer("GET", f"storage.googleapis.com/storage/v1/{P}/serviceAccount")
    assert answer["email_address"] == STORAGE, "which makes it"
    boxed.grant(P, "roles/pubsub.publisher", f"serviceAccount:{STORAGE}")
    boxed.done("eventarc.googleapis.com/v1", boxed.answer("POST", url, trigger()))
    return replies


def events(boxed: Boxed, name: str, count: int) -> list[Any]:
    """The events of an object that the function has logged, once there are so many."""

    def matching() -> list[Any]:
        logged = boxed.logged('resource.type="cloud_run_revision"')
        payloads = [entry["jsonPayload"] for entry in logged if "jsonPayload" in entry]
        return [payload for payload in payloads if payload["data"]["name"] == name]

    until(lambda: len(matching()) >= count, matching)
    return matching()


def fault(boxed: Boxed, what: Any, path: str = "", times: int = 1) -> str:
    return boxed.cloud.faults.add({"match": {"method": DELIVER}, "times": times, "what": what})


def test_a_trigger_needs_both_agents_with_their_roles(refusals: dict[str, Reply]) -> None:
    assert {name: reply.status for name, reply in refusals.items()} == {
        "no agents": 400, "a role for none": 400, "no role": 403, "no publisher": 400,
    }  # fmt: skip
    assert b"Eventarc Service Agent" in refusals["no agents"].body
    assert b"does not exist" in refusals["a role for none"].body
    assert b"the Eventarc service account has permission" in refusals["no role"].body
    assert b"roles/pubsub.publisher" in refusals["no publisher"].body


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


def test_a_workflow_as_destination_is_not_emulated(boxed: Boxed) -> None:
    body = trigger(destination={"workflow": f"{L}/workflows/any"})
    reply = boxed.send("POST", f"{TRIGGERS}?triggerId=to-workflow", body)
    assert (reply.status, b"destination.workflow" in reply.body) == (501, True), reply.body


def test_a_new_object_is_one_event(boxed: Boxed) -> None:
    boxed.upload("in%2Fa.txt", b"text")
    (event,) = events(boxed, "in/a.txt", 1)
    assert (event["type"], event["subject"], event["data"]["bucket"], event["data"]["size"]) == (
        KIND, "objects/in/a.txt", "raw", "4",
    )  # fmt: skip
    assert event["data"]["generation"].isdigit()


def test_a_delivery_whose_answer_is_lost_is_made_twice(boxed: Boxed) -> None:
    rule = fault(boxed, {"lost_answer": True})
    boxed.upload("twice.txt", b"x")
    first, second = events(boxed, "twice.txt", 2)
    assert first["id"] == second["id"]
    assert boxed.cloud.faults.lift(rule) == 1


def test_a_delivery_that_fails_comes_late(boxed: Boxed) -> None:
    rule, clock = fault(boxed, {"status": 503}, times=2), boxed.cloud.world.clock
    began = clock.now()
    boxed.upload("late.txt", b"x")
    assert len(events(boxed, "late.txt", 1)) == 1
    assert clock.now() - began >= 30
    assert boxed.cloud.faults.lift(rule) == 2


def test_a_lost_event_never_comes_and_the_next_one_does(boxed: Boxed) -> None:
    rule = fault(boxed, {"lost": True})
    boxed.upload("lost.txt", b"x")
    while boxed.cloud.faults.report()[-1]["observed"] == 0:
        time.sleep(0.02)
    boxed.upload("next.txt", b"x")
    events(boxed, "next.txt", 1)
    assert events(boxed, "lost.txt", 0) == []
    assert boxed.cloud.faults.lift(rule) == 1


TRIGGER = f"trigger@{PROJECT}.iam.gserviceaccount.com"


@pytest.mark.parametrize(("role", "account"), [
    ("roles/eventarc.eventReceiver", TRIGGER),
    ("roles/run.invoker", TRIGGER),
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

    def statuses() -> list[int]:
        requests = boxed.cloud.requests.since(0)["requests"]
        return [request["status"] for request in requests if request["method_id"] == DELIVER]

    until(lambda: statuses()[-1:] == [403])
    assert events(boxed, name, 0) == []
    boxed.grant(P, role, member)
    assert len(events(boxed, name, 1)) == 1


def test_a_deleted_trigger_delivers_nothing(boxed: Boxed) -> None:
    boxed.done("eventarc.googleapis.com/v1", boxed.answer("DELETE", f"{TRIGGERS}/new-object"))
    boxed.upload("after.txt", b"x")
    boxed.call(boxed.cloud.world.clock.sleep(10))
    assert events(boxed, "after.txt", 0) == []
    again = boxed.answer("POST", f"{TRIGGERS}?triggerId=new-object", trigger())
    boxed.done("eventarc.googleapis.com/v1", again)


def test_only_an_event_can_be_lost(boxed: Boxed) -> None:
    with pytest.raises(Exception, match="only deliveries can be lost"):
        boxed.cloud.faults.add({"match": {"method": "storage.*"}, "what": {"lost": True}})
