"""A week of preemptible slices over the emulated Google Cloud's API: everything is real but the hosts.

Weather is drawn before anything runs and done to the cloud: preemptions by its control socket, stock-outs as
the ends of creations, errors as 503. The controller is the one that `fleet monitor` runs, with its state and
lease in a bucket; its requests are checked against Google's descriptions of its APIs, and whether a node was
well when its deletion began, the cloud says.
"""

import heapq
import random
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import requests

from benchmarks.emulated import BUCKET, ENVIRONMENT, PROJECT, STACK, Emulated, body
from benchmarks.virtual import Climate, Weather
from fleet.controller import Controller, Observation, busy_s
from fleet.decide import Limits
from fleet.google import Google
from fleet.model import ON_THE_WAY, TAKEN_AWAY, Owner
from fleet.store import BucketStore
from fleet.zones import Zones
from infra.core import names
from infra.slices.nodes import Node
from rehearsal.cloud.control import ControlError
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.services.tpu.nodes import Durations

LOOK_EVERY_S = 60.0  # as `fleet monitor` has it
OWNER = Owner(names.labels(ENVIRONMENT, "tpu"), STACK)


def durations(climate: Climate) -> Durations:
    """How long the cloud takes."""
    return Durations(climate.create_s, climate.delete_s, spread=(0.5, 2.0), late=0.0)


class Killed(BaseException):
    """The controller's process is gone, between one request and the next."""


class Week:
    """A cloud, a span of time, what happens to its nodes meanwhile, and the controller that keeps them.

    Attributes:
        now_s: since it began.
        lost: preemptions.
        recoveries_s: of each member that was lost, from then until the controller saw it READY again.
        over_s: of each, until its new node was asked for, less what the deletion takes Google.
        kills: controllers that were killed.
        processor_s: what its steps took of a core.
        received_bytes: of the answers to its requests.
    """

    def __init__(
        self, cloud: Emulated, members: Sequence[Node], weather: Weather, span_s: float, kills: int = 0
    ):
        self.cloud, self.members, self.span_s = cloud, members, span_s
        self._weather, self.climate = weather, weather.climate
        status = cloud.control.status()
        self._before: Mapping[str, Any] = status["requests"]["methods"]
        self._deletions: Mapping[str, int] = status["deletions"]
        self._began_s = float(_unix_s(status["clock"]["now"]))
        self.now_s, self.lost, self.kills, self.steps = 0.0, 0, 0, 0
        self.received_bytes, self.processor_s = 0, 0.0
        cloud.session.hooks["response"].append(self._weigh)
        self.recoveries_s: list[float] = []
        self.over_s: list[float] = []
        self._down: dict[str, float] = {}
        self._down_s = 0.0
        self._where = {one.key: one.name for one in members}
        self._rng = random.Random(0)
        self._kill_at_s = sorted(self._rng.uniform(0, span_s) for _ in range(kills))
        self._requests_left = -1  # until the controller is killed; negative while it isn't to be
        self.controller, self._zones = self._started()

    def unix_s(self) -> float:
        """The cloud's time."""
        return self._began_s + self.now_s

    def _started(self) -> tuple[Controller, Zones]:
        """A new process's controller: it has read what the last one left behind."""
        # What is asked again at once takes no time here: a pause of seconds between looks a minute apart.
        google = Google(PROJECT, BUCKET, session=self.cloud.session, now=self.unix_s, sleep=lambda _: None)
        zones = Zones(_Mortal(google, self), OWNER, body, self.unix_s, Limits().heartbeat_timeout_s)
        store = BucketStore(google, STACK, now=self.unix_s)
        remote_exec = {zone for one in self.members for zone in one.places}
        controller = Controller(
            self.members, google, zones, store, Limits(), OWNER, random.Random(0), zones=remote_exec
        )
        return controller, zones

    def create_all(self) -> float:
        """From nothing until every member is READY: virtual seconds."""
        losses, self._weather.losses = self._weather.losses, []
        while not self.steps or self.controller.busy:
            self.step()
        self._weather.losses = losses
        return self.now_s

    def live(self) -> None:
        """Until the span is over, stock-outs, errors and kills included."""
        self._faults()
        status = self.cloud.control.status()
        self._before = status["requests"]["methods"]
        begun_s, self.steps, self.received_bytes, self.processor_s = self.now_s, 0, 0, 0.0
        self.span_s += begun_s
        self._kill_at_s = [one + begun_s for one in self._kill_at_s]
        self._weather.losses = [(at_s + begun_s, key) for at_s, key in self._weather.losses]
        while self.now_s < self.span_s:
            self.step()

    def step(self) -> Observation:
        """One of the controller's, and the pause after it."""
        if self._kill_at_s and self._kill_at_s[0] <= self.now_s:
            self._kill_at_s.pop(0)
            self._requests_left = self._rng.randrange(4)  # of those that it makes next
        begun_s = time.process_time()
        observation = self.controller.step()
        self._zones.wait()
        self.processor_s += time.process_time() - begun_s
        self.steps += 1
        self._note(observation)
        if self._requests_left == 0:
            self.kills += 1
            self._requests_left = -1
            self.advance(self.now_s + 180.0)  # until its lease has expired
            self.controller, self._zones = self._started()
            return observation
        self.advance(self.now_s + (busy_s(len(self.members)) if self.controller.busy else LOOK_EVERY_S))
        return observation

    def request(self) -> None:
        """Before each request that changes something; the last one of a killed controller isn't made."""
        if self._requests_left == 0:
            raise Killed
        if self._requests_left > 0:
            self._requests_left -= 1

    def _note(self, observation: Observation) -> None:
        for one in observation.members:
            self._where[one.key] = one.name
            observed = observation.view.node(one.name, one.zone)
            if one.key in self._down and observed and observed.state == "READY":
                lost_s = self._down.pop(one.key)
                self.recoveries_s.append(self.now_s - lost_s)
                self.over_s.append(observed.created_s - self._began_s - lost_s - self.climate.delete_s)
                self._down_s += self.now_s - lost_s

    def advance(self, to_s: float) -> None:
        """Lets time pass; what is to be lost until then is lost at its moment."""
        losses = self._weather.losses
        while losses and losses[0][0] <= to_s:
            at_s, key = heapq.heappop(losses)
            self._jump(at_s)
            try:
                self.cloud.control.preempt(self._where[key], notice=False)
            except ControlError:
                continue  # isn't there, or isn't READY
            self.lost += 1
            self._down.setdefault(key, self.now_s)
        self._jump(to_s)

    def _jump(self, to_s: float) -> None:
        if to_s > self.now_s:
            self.cloud.control.jump(to_s - self.now_s)
            self.now_s = to_s

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

    def _weigh(self, answer: requests.Response, *_: Any, **__: Any) -> None:
        self.received_bytes += len(answer.content)

    def told(self) -> dict[str, Any]:
        """What is to be known of it, at its end."""
        after = self.cloud.control.status()
        assert not after["mistakes"], after["mistakes"]
        methods = {
            name: count["validated"] - self._before.get(name, {}).get("validated", 0)
            for name, count in after["requests"]["methods"].items()
        }
        span_s = self.now_s if self.span_s > self.now_s else self.span_s
        down_s = self._down_s + sum(span_s - at_s for at_s in self._down.values())
        deletions = {state: n - self._deletions.get(state, 0) for state, n in after["deletions"].items()}
        well = {state: n for state, n in deletions.items() if state not in {*TAKEN_AWAY, *ON_THE_WAY}}
        return {
            "lost": self.lost,
            "kills": self.kills,
            "steps": self.steps,
            "processor_s": self.processor_s,
            "received_bytes": self.received_bytes,
            "recoveries_s": self.recoveries_s,
            "over_s": self.over_s,
            "available": 1 - down_s / (span_s * len(self.members)),
            "healthy_deleted": well.get("READY", 0),
            "deletions": deletions,
            "methods": {name: count for name, count in methods.items() if count},
            "refused_by_description": after["requests"]["refused"],
            "stock_outs": _observed(after, "operation_error"),
            "errors": _observed(after, "status"),
        }


class _Mortal:
    """Google's API for a controller that may be killed before any request that changes something."""

    def __init__(self, google: Google, week: Week):
        self._google, self._week = google, week
        self.node, self.operation, self.attested = google.node, google.operation, google.attested
        self.update = google.update

    def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
        """See `zones.Api`."""
        self._week.request()
        return self._google.create(zone, name, body)

    def delete(self, zone: str, name: str) -> None:
        """See `zones.Api`."""
        self._week.request()
        self._google.delete(zone, name)


def _observed(status: JsonObject, what: str) -> int:
    return sum(rule["observed"] for rule in status["faults"] if what in rule["what"])


def _unix_s(said: str) -> float:
    return datetime.fromisoformat(said.replace("Z", "+00:00")).timestamp()
