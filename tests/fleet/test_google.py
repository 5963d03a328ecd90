"""Requests of an observation, and the kind of each failure: one body over every request and fault."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import requests
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError

from fleet import google
from fleet.google import Google, spoken
from fleet.model import WorkerStatus, ZoneView, summarized
from fleet.proof import Attested
from infra.google import client
from infra.google.client import RequestError
from infra.google.failures import FOR_PEOPLE, Kind
from tests.limits import HANG_S, until
from tests.served import Received, Reply, serving

ZONES = ["us-east5-a", "us-east5-b"]


class Cloud:
    """Answers as it is told; remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, list[str]]]] = []
        self.answers: Callable[[str, str, dict[str, list[str]]], tuple[int, Any, dict[str, str]] | None]
        self.answers = lambda method, path, query: (200, {}, {})


@pytest.fixture(name="cloud")
def _cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    cloud = Cloud()

    def answer(request: Received) -> Reply | bytes:
        parts = request.method, request.path, request.query
        cloud.requests.append(parts)
        answers = cloud.answers(*parts)
        return b"" if answers is None else Reply(answers[0], answers[1], answers[2].items())

    with serving(answer) as address:
        monkeypatch.setattr(client, "TPU", f"http://{address}")
        monkeypatch.setattr(client, "STORAGE", f"http://{address}")
        monkeypatch.setattr(client, "_PAUSE_S", 0.001)
        yield cloud


@pytest.fixture(name="client_")
def _client() -> Google:
    return Google("p", "b", session=requests.Session())


def node(zone: str, name: str, state: str = "READY") -> dict[str, Any]:
    return {
        "name": f"projects/p/locations/{zone}/nodes/{name}", "state": state, "id": "7",
        "createTime": "2026-11-21T10:00:00.5Z", "labels": {"layer": "tpu"},
    }  # fmt: skip


def listing(count: int) -> Callable[[str, str, dict[str, list[str]]], tuple[int, Any, dict[str, str]]]:
    """So many nodes in each zone, and as many words, in pages of 1,000."""

    def answer(_: str, path: str, query: dict[str, list[str]]) -> tuple[int, Any, dict[str, str]]:
        begin = int(query.get("pageToken", ["0"])[0])
        numbers = range(begin, min(count, begin + 1000))
        page: dict[str, Any] = {"nextPageToken": str(begin + 1000)} if begin + 1000 < count else {}
        if "/nodes" in path:
            zone = path.split("/")[5]
            return 200, page | {"nodes": [node(zone, f"tpu-{n}") for n in numbers]}, {}
        kind = query["prefix"][0]
        output = (
            {"state": "running", "samples": "5", "of_samples": "9"}
            if kind == "heartbeats/"
            else {"state": "ready"}
        )
        items = [
            {
                "name": f"{kind}tpu-{n}/worker-0{'.json' * (kind == 'boot/')}",
                "updated": "2026-11-21T11:00:00Z",
                "metadata": output,
            }
            for n in numbers
        ]
        return 200, page | {"items": items}, {}

    return answer


def test_a_look_is_one_list_call_a_zone_and_one_listing_of_each_kind_of_word(
    cloud: Cloud, client_: Google
) -> None:
    cloud.answers = listing(3)
    view = client_.observe(ZONES)
    assert sorted(path for _, path, _ in cloud.requests) == [
        "/storage/v1/b/b/o",
        "/storage/v1/b/b/o",
        "/v2/projects/p/locations/us-east5-a/nodes",
        "/v2/projects/p/locations/us-east5-b/nodes",
    ]
    (fields,) = {query["fields"][0] for _, path, query in cloud.requests if path.endswith("/nodes")}
    assert fields == "nodes(name,id,state,createTime,labels,health),nextPageToken,unreachable"
    nodes, statuses = view.zones["us-east5-b"].nodes, view.statuses
    assert nodes is not None
    assert statuses is not None
    assert (nodes["tpu-2"].state, nodes["tpu-2"].instance) == ("READY", "7")
    assert nodes["tpu-2"].created_s == pytest.approx(1795255200.5)
    status = summarized(statuses["tpu-1"])
    assert status is not None
    assert (status.boot, status.work, status.samples) == ("ready", "running", 5)


def test_a_thousand_members_are_seen_in_two_seconds(cloud: Cloud, client_: Google) -> None:
    """Time that this machine adds to Google's: 8 zones of 125 nodes would take as many requests.

    In processor time, which other work on the machine changes least; the server's is in it.
    """
    cloud.answers = listing(1000)
    begun = time.process_time()
    view = client_.observe([f"us-east5-{letter}" for letter in "abcdefgh"])
    assert time.process_time() - begun < 2.0
    assert len(view.statuses or ()) == 1000
    assert len(cloud.requests) == 10


def test_pages_are_read_to_their_end(cloud: Cloud, client_: Google) -> None:
    cloud.answers = listing(2500)
    nodes = client_.zone("us-east5-a").nodes
    assert nodes is not None
    assert len(nodes) == 2500


def test_an_incomplete_list_is_no_list(cloud: Cloud, client_: Google) -> None:
    cloud.answers = lambda *_: (200, {"nodes": [], "unreachable": ["us-east5-a"]}, {})
    view = client_.zone("us-east5-a")
    assert view.nodes is None
    assert view.failure is not None
    assert view.failure.kind is Kind.UNKNOWN


FAULTS: dict[str, tuple[tuple[int, Any, dict[str, str]] | None, Kind]] = {
    "rate": ((429, {"error": {"message": "slow"}}, {"Retry-After": "0"}), Kind.RATE),
    "quota": ((429, {"error": {"message": "Quota limit 'X' has been exceeded"}}, {}), Kind.QUOTA),
    "500": ((500, b"oops", {}), Kind.TRANSIENT),
    "503": ((503, {"error": {"message": "unavailable"}}, {}), Kind.TRANSIENT),
    "reset": (None, Kind.UNKNOWN),
    "401": ((401, {"error": {"message": "who are you"}}, {}), Kind.LOGIN),
    "403": ((403, {"error": {"message": "Permission 'x.y' denied"}}, {}), Kind.PERMISSION),
    "off": ((403, {"error": {"message": "API has not been used in project p before"}}, {}), Kind.API_OFF),
    "400": ((400, {"error": {"message": "bad"}}, {}), Kind.INVALID),
}
REQUESTS: dict[str, Callable[[Google], Any]] = {
    "nodes.list": lambda client_: client_.zone("us-east5-a"),
    "objects.list": lambda client_: client_.observe([]),
    "objects.get": lambda client_: client_.read("fleet/memory.json"),
    "nodes.get": lambda client_: client_.node("us-east5-a", "n"),
    "nodes.create": lambda client_: client_.create("us-east5-a", "n", {}),
    "nodes.delete": lambda client_: client_.delete("us-east5-a", "n"),
    "nodes.patch": lambda client_: client_.update("us-east5-a", "n", {"labels": {}}),
    "nodes.getGuestAttributes": lambda client_: client_.attested("us-east5-a", "n"),
    "operations.get": lambda client_: client_.operation("operations/1"),
    "objects.insert": lambda client_: client_.write("fleet/memory.json", "{}", 3),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", REQUESTS)
def test_every_fault_of_every_request_has_a_kind_and_nothing_else_comes_out(
    name: str, fault: str, cloud: Cloud, client_: Google
) -> None:
    answer, kind = FAULTS[fault]
    cloud.answers = lambda *_: answer
    try:
        outcome = REQUESTS[name](client_)
    except RequestError as error:
        failure = error.failure
    else:
        failure = outcome.failure
    assert failure.kind is kind
    again = kind in (Kind.RATE, Kind.TRANSIENT, Kind.UNKNOWN)
    desired = (3 if again else 1) * (2 if name == "objects.list" else 1)
    desired += again and name == "objects.insert"  # is it there, but for the answer?
    until(lambda: len(cloud.requests) >= desired)  # nobody waits for the other of two listings any more
    assert len(cloud.requests) == desired


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_fails_once_is_asked_again(name: str, cloud: Cloud, client_: Google) -> None:
    failed: set[str] = set()

    def once(_: str, path: str, query: dict[str, list[str]]) -> tuple[int, Any, dict[str, str]]:
        key = f"{path} {query.get('prefix')}"
        if key not in failed:
            failed.add(key)
            return 503, {"error": {"message": "unavailable"}}, {}
        return 200, {"generation": "4", "name": "operations/1"}, {"x-goog-generation": "4"}

    cloud.answers = once
    outcome = REQUESTS[name](client_)
    assert getattr(outcome, "failure", None) is None
    assert failed


def test_a_missing_object_is_none_and_a_lost_race_is_said(cloud: Cloud, client_: Google) -> None:
    cloud.answers = lambda *_: (404, {"error": {"message": "No such object"}}, {})
    assert client_.read("fleet/memory.json") is None
    cloud.answers = lambda *_: (412, {"error": {"message": "conditionNotMet"}}, {})
    with pytest.raises(RequestError) as caught:
        client_.write("fleet/memory.json", "{}", 3)
    assert caught.value.failure.kind is Kind.INVALID
    assert cloud.requests[-1][2]["ifGenerationMatch"] == ["3"]


def test_requests_to_cloud_storage_go_to_its_private_endpoint(
    cloud: Cloud, client_: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_STORAGE_CUSTOM_ENDPOINT", f"{client.STORAGE}/private/storage/v1/")
    cloud.answers = lambda *_: (200, {"generation": "7"}, {})
    client_.saved("a/")
    client_.is_there("a")
    client_.upload("b", "a", b"", 0)
    client.permissions_held(client_, client.bucket_url("b"), [])
    assert [path for _, path, _ in cloud.requests] == [
        "/private/storage/v1/b/b-fleet/o",
        "/private/storage/v1/b/b/o/a",
        "/private/upload/storage/v1/b/b/o",
        "/private/storage/v1/b/b/iam/testPermissions",
    ]


def test_the_words_of_several_workers_are_one() -> None:
    def item(name: str, at: str, **output: str) -> dict[str, Any]:
        return {"name": name, "updated": f"2026-11-21T11:00:{at}Z", "metadata": output}

    statuses, unread = spoken(
        [
            {"name": "boot/", "updated": "2026-11-21T11:00:00Z"},
            item("boot/n/worker-unknown-17.json", "05", state="failed", stage="identity"),
            item("boot/n/worker-0.json", "01", state="ready", stage="launch"),
            item("boot/n/worker-1.json", "06", state="failed", stage="mount-data", why="no disk"),
            item("heartbeats/n/worker-0", "03", state="running", samples="5", shards="1", disk="full"),
            item(
                "heartbeats/n/worker-1", "04", state="done", samples="7", size_bytes="12", run="gs://b/runs/r"
            ),
        ]
    )
    assert (list(statuses), unread) == (["n"], {})
    status = summarized(statuses["n"])
    assert status is not None
    assert (status.boot, status.stage, status.work) == ("failed", "mount-data", "running")
    assert (status.samples, status.shards, status.size_bytes) == (12, 1, 12)
    assert (status.why, status.disk_full, status.run) == ("no disk", True, "gs://b/runs/r")


def test_words_without_numbers_or_time_are_read_all_the_same() -> None:
    statuses, _ = spoken([{"name": "heartbeats/n/worker-0", "updated": "?", "metadata": {"loss": "nan"}}])
    (status,) = statuses["n"]
    assert (status.samples, status.loss, status.at_s, status.work) == (0, None, 0.0, "")


def test_a_long_retry_after_is_not_slept_out(cloud: Cloud) -> None:
    """A keeper that slept would neither look at the other zones nor show that it lives."""
    slept: list[float] = []
    client_ = Google("p", "b", session=requests.Session(), sleep=slept.append)
    cloud.answers = lambda method, path, query: (429, {}, {"Retry-After": "86400"})
    observed = client_.zone("us-east5-a")
    assert (observed.nodes, slept, len(cloud.requests)) == (None, [], 1)
    cloud.answers = lambda method, path, query: (429, {}, {"Retry-After": "20"})
    client_.zone("us-east5-a")
    assert slept == [20.0, 20.0]


def test_one_node_is_asked_for_by_itself(cloud: Cloud, client_: Google) -> None:
    cloud.answers = lambda method, path, query: (200, {"id": "9", "state": "READY"}, {})
    observed = client_.node("us-east5-a", "n")
    assert observed is not None
    assert (observed.name, observed.zone, observed.instance, observed.state) == (
        "n",
        "us-east5-a",
        "9",
        "READY",
    )
    assert cloud.requests[-1][:2] == ("GET", "/v2/projects/p/locations/us-east5-a/nodes/n")
    cloud.answers = lambda method, path, query: (404, {"error": {"message": "not found"}}, {})
    assert client_.node("us-east5-a", "n") is None
    cloud.answers = lambda method, path, query: (200, b"<html>", {})
    with pytest.raises(RequestError, match="no JSON"):
        client_.node("us-east5-a", "n")


def test_a_slow_zone_delays_no_other_and_what_it_says_later_is_of_the_next_look(
    cloud: Cloud, client_: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(google, "_PATIENCE_S", 0.3)
    free, fast = threading.Event(), listing(2)

    def slow(method: str, path: str, query: dict[str, list[str]]) -> tuple[int, Any, dict[str, str]]:
        assert "us-east5-a" not in path or free.wait(HANG_S)
        return fast(method, path, query)

    cloud.answers = slow
    view = client_.observe(ZONES)
    assert not free.is_set()
    assert (view.zones["us-east5-a"].nodes, len(view.zones["us-east5-b"].nodes or ())) == (None, 2)
    failure = view.zones["us-east5-a"].failure
    assert failure is not None
    assert "no answer within" in failure.message
    free.set()
    while not client_._late["us-east5-a"][1].done():
        time.sleep(0.01)
    requested = len(cloud.requests)
    assert len(client_.observe(ZONES).zones["us-east5-a"].nodes or ()) == 2
    assert len(cloud.requests) == requested + 3, "that zone wasn't asked again"


def test_an_answer_that_came_too_late_is_asked_for_again(
    cloud: Cloud, client_: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    client_._now = lambda: now[0]
    cloud.answers = listing(2)
    old: Future[ZoneView] = Future()
    old.set_result(ZoneView({}))
    client_._late = {"us-east5-a": (now[0], old)}
    now[0] += 600
    assert len(client_.observe(ZONES[:1]).zones["us-east5-a"].nodes or ()) == 2


def test_steps_of_a_trainer_are_not_summed_over_workers_and_samples_of_an_extractor_are() -> None:
    steps = [WorkerStatus(1.0, work="running", samples=40, of_samples=100) for _ in range(4)]
    result = summarized(steps)
    assert result is not None
    assert (result.samples, result.of_samples) == (40, 100)
    samples = [WorkerStatus(1.0, work="running", samples=40, of_samples=100, shards=1) for _ in range(4)]
    result = summarized(samples)
    assert result is not None
    assert (result.samples, result.of_samples, result.shards) == (160, 400, 4)


def test_what_workers_attest_is_read_and_nonsense_is_nothing(cloud: Cloud, client_: Google) -> None:
    def worker(**values: str) -> dict[str, Any]:
        items = [{"namespace": "tpu", "key": key, "value": value} for key, value in values.items()]
        return {"queryPath": "tpu/", "queryValue": {"items": items}}

    output = [
        worker(boot='{"state": "failed", "updated_s": 5}', job='{"state": "running", "updated_s": "7.5"}'),
        worker(boot="[]", job="nonsense"), {}, worker(job='{"state": "failed", "final": true}'),
    ]  # fmt: skip
    cloud.answers = lambda *_: (200, {"guestAttributes": output}, {})
    assert client_.attested("us-east5-a", "n") == [
        Attested("failed", 5.0, "running", 7.5),
        Attested(unread="a guest attribute is no JSON object"),
        Attested(),
        Attested(job="failed", final=True),
    ]
    assert cloud.requests[-1][:2] == (
        "POST",
        "/v2/projects/p/locations/us-east5-a/nodes/n:getGuestAttributes",
    )


def test_how_an_operation_ended_is_told_apart(cloud: Cloud, client_: Google) -> None:
    cloud.answers = lambda *_: (200, {"name": "o"}, {})
    assert client_.operation("o") == (False, None)
    error = {"code": 8, "message": "There is no more capacity in the zone"}
    cloud.answers = lambda *_: (200, {"name": "o", "done": True, "error": error}, {})
    done, failure = client_.operation("o")
    assert (done, failure and failure.kind) == (True, Kind.STOCK_OUT)


def test_as_many_connections_are_kept_as_a_controller_has_threads(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight to each zone and one for its list: those of a smaller pool would be recreated each time."""
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "token")
    together = threading.Barrier(9 * 8, timeout=HANG_S)

    def answer(*_: object) -> tuple[int, Any, dict[str, str]]:
        together.wait()
        return 200, {"id": "9", "state": "READY"}, {}

    cloud.answers = answer
    client_ = Google("p", "b")
    with ThreadPoolExecutor(together.parties) as pool:
        result = list(pool.map(lambda n: client_.node("us-east5-a", f"n-{n}"), range(together.parties)))
    assert all(result)
    assert "pool is full" not in caplog.text


def refused_by(error: GoogleAuthError) -> RefreshError:
    """As credentials of a VM raise it."""
    refused = RefreshError(error)  # type: ignore[no-untyped-call]
    refused.__cause__ = error
    return refused


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refused_by(TransportError("metadata server unavailable")), Kind.TRANSIENT),  # type: ignore[no-untyped-call]
        (RefreshError("Unable", '{"error": {\n "code": 503, "message": "?"}}'), Kind.TRANSIENT),  # type: ignore[no-untyped-call]
        (RefreshError("internal_failure", retryable=True), Kind.TRANSIENT),  # type: ignore[no-untyped-call]
        (RefreshError("invalid_grant: Bad Request"), Kind.LOGIN),  # type: ignore[no-untyped-call]
        (RefreshError("Unable", '{"error": {"code": 403, "message": "denied"}}'), Kind.LOGIN),  # type: ignore[no-untyped-call]
    ],
)  # fmt: skip
def test_a_token_that_cannot_be_had_for_a_moment_holds_nothing_until_somebody_acts(
    error: RefreshError, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller's own account gets a token each hour, of a metadata server or of an API that fails too."""
    session = mock.Mock(**{"request.side_effect": error})
    client_ = Google("p", "b", session=session, sleep=lambda _: None)
    with pytest.raises(RequestError) as failed:
        client_.node("us-east5-a", "n")
    assert (failed.value.failure.kind, kind in FOR_PEOPLE) == (kind, kind is Kind.LOGIN)
    assert session.request.call_count == (3 if kind is Kind.TRANSIENT else 1)
