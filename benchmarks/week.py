"""The same week over the emulated Google Cloud's API: what is asked there, and what comes of it.

Weather is drawn as for the week in numbers (`fleet/virtual.py`) and done to the cloud: preemptions by its
control socket, stock-outs as the ends of creations, errors as 503. What each client asks is checked against
Google's descriptions of its APIs; whether a node was well when its deletion began, the cloud says.
"""

import heapq
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import urllib3
from fleet.books import BucketBooks
from fleet.loop import Keeper
from fleet.provision import Outcome
from fleet.virtual import Climate, Weather

from benchmarks.emulated import BUCKET, PROJECT, Emulated, body
from fleet import adopt
from fleet.decide import Limits
from fleet.failures import Failure, Kind, classify
from fleet.google import Google
from fleet.state import TAKEN_AWAY, Place
from infra.nodes import Node
from rehearsal.cloud.control import ControlError
from rehearsal.cloud.service import JsonObject
from rehearsal.cloud.tpu.nodes import Durations

POLL_S = 10.0  # between two looks at an operation, as the provider has it
LOOK_EVERY_S = 60.0  # as `fleet monitor` has it
# Of the serial loop: a describe by the command line, and its pauses, from its own script.
DESCRIBE_S, PAUSE_S, RETRY_S = 1.0, 5.0, 30.0


def durations(climate: Climate) -> Durations:
    """How long the cloud takes, as in the week in numbers; but that it refuses at once."""
    return Durations(climate.create_s, climate.delete_s, spread=(0.5, 2.0))


class Week:
    """A cloud, a span of time, and what happens to its nodes meanwhile.

    Attributes:
        now_s: since it began.
        lost: preemptions.
        recoveries_s: of each node that was lost, from then until it was READY again.
    """

    def __init__(self, cloud: Emulated, members: Sequence[Node], weather: Weather, span_s: float):
        self.cloud, self.members, self.span_s = cloud, members, span_s
        self._weather, self.climate = weather, weather.climate
        cloud.create(members, 2 * self.climate.create_s)
        before = cloud.control.status()
        assert {node["state"] for node in before["nodes"]} == {"READY"}
        self._before = before["requests"]["methods"]
        self._began_s = float(_unix_s(before["clock"]["now"]))
        self._faults()
        self.now_s, self.lost = 0.0, 0
        self.recoveries_s: list[float] = []
        self._down: dict[str, float] = {}
        self._down_s = 0.0

    def _faults(self) -> None:
        add = self.cloud.control.add_fault
        for zone, spans in self._weather.dry.items():
            words = f'There is no more capacity in the zone "{zone}"; you can try in another zone'
            for begin_s, end_s in spans:
                add({
                    "match": {"method": "tpu.projects.locations.nodes.create", "path": f"/{zone}/"},
                    "when": {"at_s": begin_s, "for_s": end_s - begin_s},
                    "what": {"operation_error": {"code": "RESOURCE_EXHAUSTED", "message": words}},
                })  # fmt: skip
        for zone, spans in self._weather.ill.items():
            for begin_s, end_s in spans:
                add({
                    "match": {"host": "tpu.googleapis.com", "path": f"/{zone}/"},
                    "when": {
                        "at_s": begin_s, "for_s": end_s - begin_s,
                        "probability": self.climate.ill_share, "seed": 0,
                    },
                    "what": {"status": 503, "message": "The service is currently unavailable."},
                })  # fmt: skip

    def unix_s(self) -> float:
        """The cloud's time."""
        return self._began_s + self.now_s

    def advance(self, to_s: float) -> None:
        """Lets time pass; what is to be lost until then is lost at its moment."""
        to_s = min(to_s, self.span_s)
        losses = self._weather.losses
        while losses and losses[0][0] <= to_s:
            at_s, name = heapq.heappop(losses)
            self._jump(at_s)
            try:
                self.cloud.control.preempt(name, notice=False)
            except ControlError:
                continue  # isn't there, or isn't READY
            self.lost += 1
            self.down(name)
        self._jump(to_s)

    def _jump(self, to_s: float) -> None:
        if to_s > self.now_s:
            self.cloud.control.jump(to_s - self.now_s)
            self.now_s = to_s

    def down(self, name: str) -> None:
        """A node works no longer, as of now."""
        self._down.setdefault(name, self.now_s)

    def back(self, name: str, operation: JsonObject) -> None:
        """A node is READY, since its operation ended."""
        recovery_s = float(_unix_s(operation["metadata"]["endTime"])) - self._began_s - self._down.pop(name)
        self.recoveries_s.append(recovery_s)
        self._down_s += recovery_s

    def told(self) -> dict[str, Any]:
        """What is to be known of it, at its end."""
        after = self.cloud.control.status()
        assert not after["mistakes"], after["mistakes"]
        methods = {
            name: count["validated"] - self._before.get(name, {}).get("validated", 0)
            for name, count in after["requests"]["methods"].items()
        }
        node_s = self.span_s * len(self.members)
        down_s = self._down_s + sum(self.span_s - at_s for at_s in self._down.values())
        well = {state: n for state, n in after["deletions"].items() if state not in TAKEN_AWAY}
        return {
            "lost": self.lost,
            "recoveries_s": self.recoveries_s,
            "available": 1 - down_s / node_s,
            "healthy_deleted": well.get("READY", 0),
            "deletions": after["deletions"],
            "methods": {name: count for name, count in methods.items() if count},
            "refused_by_description": after["requests"]["refused"],
            "stock_outs": _observed(after, "operation_error"),
            "errors": _observed(after, "status"),
        }


def _observed(status: JsonObject, what: str) -> int:
    return sum(rule["observed"] for rule in status["faults"] if what in rule["what"])


class Asker:
    """Requests about nodes and operations, without more ado: of the provider, and of the command line."""

    def __init__(self, cloud: Emulated):
        self._pool = urllib3.HTTPConnectionPool("127.0.0.1", cloud.port)
        self._headers = {
            "Host": "tpu.googleapis.com", "Authorization": f"Bearer {cloud.token}",
            "Content-Type": "application/json",
        }  # fmt: skip

    def node(self, method: str, member: Node) -> tuple[int, JsonObject]:
        """One that is there: GET, DELETE."""
        return self._ask(method, f"{_parent(member)}/nodes/{member.name}")

    def create(self, member: Node) -> tuple[int, JsonObject]:
        """nodes.create."""
        return self._ask("POST", f"{_parent(member)}/nodes?nodeId={member.name}", body(member))

    def operation(self, name: str) -> tuple[int, JsonObject]:
        """operations.get."""
        return self._ask("GET", name)

    def _ask(self, method: str, path: str, sent: JsonObject | None = None) -> tuple[int, JsonObject]:
        content = None if sent is None else json.dumps(sent)
        answer = self._pool.request(method, f"/v2/{path}", body=content, headers=self._headers, retries=False)
        return answer.status, json.loads(answer.data)


def _parent(member: Node) -> str:
    return f"projects/{PROJECT}/locations/{member.zone}"


@dataclass
class _Job:
    """One member of an update; `operation` is the one under way, "" where the next is to be asked for."""

    member: Node
    deleting: bool
    operation: str = ""
    done: bool = False
    failure: Failure | None = None


class ApiBuilder:
    """A `Builder` that asks as the provider does: delete, wait, create, wait; each member by itself.

    Pulumi itself would take an hour for the states and processes of these eight thousand updates; its part of
    each is `Climate.update_s`.
    """

    def __init__(self, week: Week, google: Google):
        self._week, self._google, self._asker = week, google, Asker(week.cloud)
        self._members = {member.name: member for member in week.members}
        self._held = set(self._members)  # what the stack holds
        self._jobs: list[_Job] = []
        self._ends_s: float | None = None

    @property
    def busy(self) -> bool:
        """Whether there is something to wait for."""
        return any(not job.done for job in self._jobs)

    def held(self) -> None:
        """Nobody asks for a stack here."""

    def start(self, places: Mapping[str, Place]) -> None:
        """See `loop.Builder`."""
        assert not self._jobs, "one update at a time"
        zones = {name: self._members[name].zone for name in places}
        assert zones == {name: place.zone for name, place in places.items()}, "nobody may be moved"
        self._jobs = [_Job(self._members[name], deleting=name in self._held) for name in places]
        left = adopt.alive(places, {name: zones[name] for name in places if name in self._held}, self._google)
        for job in self._jobs:
            if job.member.name in left:
                job.done, job.failure = True, left[job.member.name]
        self._ends_s = None
        self.poll()

    def ended(self) -> Outcome | None:
        """See `loop.Builder`."""
        if self._ends_s is None or self._week.now_s < self._ends_s:
            return None
        outcome = {job.member.name: job.failure for job in self._jobs}
        self._jobs, self._ends_s = [], None
        return outcome

    def poll(self) -> None:
        """Asks for what is next, and after what is under way."""
        for job in self._jobs:
            if not job.done:
                self._step(job)
        if self._jobs and self._ends_s is None and not self.busy:
            self._ends_s = self._week.now_s + self._week.climate.update_s

    def _step(self, job: _Job) -> None:
        name = job.member.name
        if not job.operation:
            if job.deleting:
                status, answer = self._asker.node("DELETE", job.member)
            else:
                status, answer = self._asker.create(job.member)
            if status == 200:
                job.operation = answer["name"]
                if job.deleting:
                    self._week.down(name)
            elif job.deleting and status == 404:
                self._gone(job)
            else:
                self._failed(job, classify(answer["error"]["message"], status))
            return
        status, answer = self._asker.operation(job.operation)
        if status != 200:
            self._failed(job, classify(answer["error"]["message"], status))
        elif "error" in answer:
            code, message = answer["error"]["code"], answer["error"]["message"]
            self._failed(job, classify(f"Error code {code}, message: {message}"))
        elif answer["done"] and job.deleting:
            self._gone(job)
        elif answer["done"]:
            job.done = True
            self._held.add(name)
            self._week.back(name, answer)

    def _gone(self, job: _Job) -> None:
        self._held.discard(job.member.name)
        job.deleting, job.operation = False, ""
        self._step(job)

    def _failed(self, job: _Job, failure: Failure) -> None:
        """What passes is asked again at the next poll, as the provider does."""
        if failure.kind not in (Kind.TRANSIENT, Kind.RATE):
            job.done, job.failure = True, failure


def ours(week: Week) -> None:
    """A keeper over Google's API, its memory in the bucket, until the week ends."""
    cloud = week.cloud
    # What is asked again at once takes no time here: a pause of seconds between looks a minute apart.
    google = Google(PROJECT, BUCKET, cloud.session, now=week.unix_s, sleep=lambda _: None)
    builder = ApiBuilder(week, google)
    dice = random.Random(0)
    books = BucketBooks(google, now=week.unix_s)
    keeper = Keeper(week.members, google, builder, books, Limits(), {"layer": "tpu"}, dice)
    while week.now_s < week.span_s:
        keeper.step()
        next_s = week.now_s + LOOK_EVERY_S
        while builder.busy and week.now_s + POLL_S < next_s:
            week.advance(week.now_s + POLL_S)
            builder.poll()
        week.advance(next_s)
        builder.poll()


def serial(week: Week) -> None:
    """One node after another: described, and deleted and created where that doesn't say READY."""
    asker = Asker(week.cloud)

    def over() -> bool:
        return week.now_s >= week.span_s

    while not over():
        for member in week.members:
            week.advance(week.now_s + DESCRIBE_S)
            status, node = asker.node("GET", member)
            if status == 200 and node["state"] == "READY":
                continue
            _replaced_serially(week, asker, member, over)
            if over():
                return
        week.advance(week.now_s + LOOK_EVERY_S)


def _replaced_serially(week: Week, asker: Asker, member: Node, over: Callable[[], bool]) -> None:
    """Deletes, unless that request fails, and creates until there is a node."""
    status, operation = asker.node("DELETE", member)
    if status == 200:
        week.down(member.name)
        _waited(week, asker, operation["name"], over)
    week.advance(week.now_s + PAUSE_S)
    while not over():
        status, answer = asker.create(member)
        if status == 409:
            return  # it exists
        if status == 200 and (done := _waited(week, asker, answer["name"], over)) and "error" not in done:
            week.back(member.name, done)
            return
        week.advance(week.now_s + RETRY_S)


def _waited(week: Week, asker: Asker, name: str, over: Callable[[], bool]) -> JsonObject | None:
    """The end of an operation; None where the week ends first."""
    while not over():
        week.advance(week.now_s + POLL_S)
        status, operation = asker.operation(name)
        if status == 200 and operation["done"]:
            return operation
    return None


def _unix_s(said: str) -> float:
    return datetime.fromisoformat(said.replace("Z", "+00:00")).timestamp()
