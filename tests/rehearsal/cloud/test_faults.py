"""Every kind of fault strikes as its rule says, and says that it did."""

from __future__ import annotations

import asyncio
import http.client
import time
from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.door.faults import FaultError, Faults

ZONES = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/zones"
BROKEN = (ConnectionError, http.client.HTTPException)


@pytest.fixture(autouse=True, scope="module")
def objects(cloud: CloudFront) -> None:
    cloud.bucket("faults")
    for name in ("x", "kept", "gone"):
        cloud.upload("faults", name)


def observed(cloud: CloudFront, rule_id: str) -> int:
    return next(int(rule["observed"]) for rule in cloud.faults.report() if rule["id"] == rule_id)


def add(cloud: CloudFront, what: dict[str, Any], method: str = "compute.zones.list", **more: Any) -> str:
    return cloud.faults.add({"match": {"method": method}, "times": 1, "what": what, **more})


@pytest.mark.parametrize("status", [429, 500, 503, 403])
def test_a_status_is_answered_so_often_and_no_oftener(cloud: CloudFront, status: int) -> None:
    rule = add(cloud, {"status": status, "retry_after_s": 2, "message": "not now"}, times=2)
    replies = [cloud.request("GET", ZONES) for _ in range(3)]
    assert [reply.status for reply in replies] == [status, status, 200]
    assert (replies[0].headers["Retry-After"], replies[0].error) == ("2", "not now")
    assert observed(cloud, rule) == 2


@pytest.mark.parametrize(("what", "name", "status"), [("reset", "kept", 200), ("lost_answer", "gone", 404)])
def test_a_reset_does_nothing_and_a_lost_answer_was_performed(
    cloud: CloudFront, what: str, name: str, status: int
) -> None:
    rule = add(cloud, {what: True}, "storage.objects.delete")
    with pytest.raises(BROKEN):
        cloud.request("DELETE", f"storage.googleapis.com/storage/v1/b/faults/o/{name}")
    assert cloud.request("GET", f"storage.googleapis.com/storage/v1/b/faults/o/{name}").status == status
    assert observed(cloud, rule) == 1


@pytest.mark.parametrize("what", [{"lost_answer": True}, {"truncated": True}])
def test_a_stream_is_cut(cloud: CloudFront, what: dict[str, Any]) -> None:
    rule = add(cloud, what, "storage.objects.get")
    with pytest.raises(BROKEN):
        cloud.request("GET", "storage.googleapis.com/faults/x")
    assert len(cloud.request("GET", "storage.googleapis.com/faults/x").body) == 1000
    assert observed(cloud, rule) == 1


def test_a_json_answer_is_cut_in_the_middle(cloud: CloudFront) -> None:
    rule = add(cloud, {"truncated": True})
    with pytest.raises(http.client.IncompleteRead) as caught:
        cloud.request("GET", ZONES)
    assert caught.value.partial.startswith(b'{"kind"')
    assert observed(cloud, rule) == 1


def test_an_endpoint_without_a_method_is_named_by_its_address(cloud: CloudFront) -> None:
    rule = add(cloud, {"status": 503}, "oauth2.googleapis.com/token")
    assert cloud.request("POST", "oauth2.googleapis.com/token", token="").status == 503
    assert observed(cloud, rule) == 1


def test_a_delay_only_delays(cloud: CloudFront) -> None:
    rule = add(cloud, {"delay_s": 0.2})
    begun = time.monotonic()
    assert cloud.request("GET", ZONES).status == 200
    assert time.monotonic() - begun >= 0.2
    assert observed(cloud, rule) == 1


def test_an_operation_fails_of_the_first_request_that_starts_one(cloud: CloudFront) -> None:
    what = {"code": 8, "message": "There is no more capacity in the zone"}
    rule = add(cloud, {"operation_error": what}, "serviceusage.services.*")
    url = f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services/dns.googleapis.com"
    assert cloud.request("GET", url).status == 200
    assert cloud.request("POST", f"{url}.none:enable", {}).status == 400
    assert observed(cloud, rule) == 0
    operation = cloud.request("POST", f"{url}:enable", {}).json
    assert cloud.until_done("serviceusage.googleapis.com/v1", operation["name"])["error"] == what
    assert cloud.request("GET", url).json["state"] == "DISABLED"
    assert observed(cloud, rule) == 1


def test_a_refusal_can_be_lost_too(cloud: CloudFront) -> None:
    rule = add(cloud, {"lost_answer": True}, "compute.zones.get")
    with pytest.raises(BROKEN):
        cloud.request("GET", f"{ZONES}/none")
    assert observed(cloud, rule) == 1


def test_the_log_names_the_rule(cloud: CloudFront) -> None:
    rule = add(cloud, {"status": 503})
    cloud.request("GET", ZONES)
    assert cloud.requests.since(0)["requests"][-1]["reason"] == rule


@pytest.mark.parametrize(
    ("match", "injected"),
    [
        ({"method": "tpu.*.nodes.*"}, True),
        ({"method": "compute.*"}, False),
        ({"host": "tpu.*"}, True),
        ({"host": "storage.googleapis.com"}, False),
        ({"path": "/nodes/n$"}, True),
        ({"path": "^nodes"}, False),
        ({"query": "^prefix=a$"}, True),
        ({"query": "prefix=b"}, False),
        ({"principal": "*@example.com"}, True),
        ({"principal": "bob@*"}, False),
        ({"method": "tpu.*", "principal": "bob@*"}, False),
        ({}, True),
    ],
)
def test_rules_match(match: dict[str, str], injected: bool) -> None:
    faults = Faults(VirtualClock())
    faults.add({"match": match, "what": {"reset": True}})
    fault = faults.inject(
        "tpu.projects.locations.nodes.get", "tpu.googleapis.com", "/v2/p/nodes/n", "alice@example.com",
        "prefix=a",
    )  # fmt: skip
    assert (fault is not None) is injected


def strikes(faults: Faults, count: int) -> list[bool]:
    return [faults.inject("m", "h", "/p", "a") is not None for _ in range(count)]


def test_a_rule_can_begin_after_so_many_requests() -> None:
    faults = Faults(VirtualClock())
    faults.add({"when": {"after": 2}, "times": 1, "what": {"reset": True}})
    assert strikes(faults, 5) == [False, False, True, False, False]
    assert faults.report()[0]["matched"] == 5


def test_a_rule_can_end_at_a_virtual_time_and_strike_by_chance_until_then() -> None:
    clock = VirtualClock(rate=0)
    faults = Faults(clock)
    faults.add({"when": {"at_s": 60, "for_s": 600, "probability": 0.5, "seed": 7}, "what": {"reset": True}})
    assert not any(strikes(faults, 100))
    asyncio.run(clock.jump(60))
    assert 20 < sum(strikes(faults, 100)) < 80
    asyncio.run(clock.jump(600))
    assert not any(strikes(faults, 100))


def test_chance_is_repeatable() -> None:
    def run(rule: dict[str, Any], seed: int = 0) -> list[bool]:
        faults = Faults(VirtualClock(), seed)
        faults.add({**rule, "what": {"reset": True}})
        return strikes(faults, 400)

    first = run({"when": {"probability": 0.25, "seed": 7}})
    assert first == run({"when": {"probability": 0.25, "seed": 7}})
    assert first != run({"when": {"probability": 0.25, "seed": 8}})
    assert first == run({"when": {"probability": 0.25}}, seed=7), "the cloud's own seed"
    assert 60 < sum(first) < 140


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "what: {} must have exactly one of delay_s, "),
        ({"what": {"reset": True}, "when": {"after": 1, "probability": 1}}, "must have one of after and"),
        ({"what": {"reset": True}, "wen": {}}, r"rule: unknown \['wen'\]"),
        ({"what": {"explode": True}}, r"what: unknown \['explode'\]"),
        ({"what": {"reset": True, "truncated": True}}, "exactly one"),
        ({"what": {"status": 418}}, "what.status: 418 must be one of"),
        ({"what": {"operation_error": {"code": 99}}}, "what.operation_error.code: 99"),
        ({"what": {"reset": True}, "times": 0}, "times: 0 must be"),
        ({"what": {"reset": True}, "match": {"path": "("}}, r"match.path: '\(' is not a regular expression"),
        ({"what": "reset"}, "what: 'reset' must be an object"),
    ],
)
def test_rules_that_cannot_be_are_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultError, match=message):
        Faults(VirtualClock()).add(rule)
