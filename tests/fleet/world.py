"""A cloud and a stack for the command line, which answer as they are told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from fleet import environment, recovery, removal, supervise
from fleet.environment import Environment
from fleet.model import ObservedNode, View, WorkerStatus, ZoneView
from fleet.proof import Attested
from fleet.store import object_of
from fleet.zones import Answer, NodeRequest
from infra.engine.named import StackState
from infra.engine.settings import parse
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.settings.schema import ADDED_SLICES, Settings
from infra.slices.nodes import nodes
from tests.fleet.conftest import OURS, OWNER

SLICES: list[dict[str, Any]] = [
    {"name": "train", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "run": "train tiny.toml"},
    {
        "name": "extract", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 4,
        "spot": True, "run": "extract qwen2.5-0.5b.toml --stream gs://b/streams",
    },
]  # fmt: skip
BUNDLE = "ab" * 32
WORKING = WorkerStatus(0.0, "ready", "launch", "running", 1250, 5000, 12, 12_000_000_000)


def settings(slices: Sequence[Mapping[str, Any]] = SLICES, *, added: bool = False, **more: Any) -> Settings:
    """Of an environment dev with a named slice and a fleet; further ones of `fleet:` unless named whole.

    `added`: some of the slices aren't in the file.
    """
    values = {
        "gcp:project": "my-project", "storage:bucketName": "my-project-checkpoints",
        "storage:location": "us-east5", "tpu:bundle": BUNDLE, "tpu:slices": json.dumps(list(slices)),
        **{key if ":" in key else f"fleet:{key}": str(value) for key, value in more.items()},
    }  # fmt: skip
    known, marks = {key: value for key, value in values.items() if value}, [ADDED_SLICES] * added
    return parse("dev", known, "Pulumi.dev.yaml", marks=marks)


class Cloud:
    """Shows nodes in given states, READY and working unless said otherwise; what it is asked for is at once.

    Attributes:
        states, zones, labels: of each node, by name; there is none where its state is empty.
        silent: zones that don't answer; dry: those without chips.
        failure: what every creation and deletion fails with.
        update_looks: looks after which an update is over; refused: what the next updates fail with.
        asked: what was done, in order.
        objects: text and generation, of the controller's bucket.
        statuses: by node, the heartbeat of its workers, unless they work.
        login: account and place of the command.
        written_s: age of the controller's state by Google's clock.
        missing: objects and prefixes without objects, of any bucket.
        attests: by node, what its machines attest; unless given, the same as the heartbeat.
    """

    bucket, controller_bucket = "my-project-checkpoints", "my-project-checkpoints-fleet"

    def __init__(self, meant: Settings):
        stack = StackState(
            OWNER.stack, {node.name: node.zone for node in nodes(meant) if node.member is None}
        )
        self.stack = stack
        item = Environment(meant, nodes(meant), self, stack)  # type: ignore[arg-type]
        self.states = {node.name: "READY" for node in nodes(meant)}
        self.zones = {node.name: node.zone for node in nodes(meant)}
        self.labels: dict[str, Mapping[str, str]] = {
            node.name: OURS if node.member is None else item.body(node)["labels"] for node in nodes(meant)
        }
        self.instances = {name: number for number, name in enumerate(self.states, 1)}
        self._made = count(100)
        self.silent, self.dry = set[str](), set[str]()
        self.failure: Failure | None = None
        self.requests: list[tuple[str, str]] = []
        self.updated: list[str] = []
        self.update_looks, self.refused = 0, list[Failure]()
        self._updates: list[tuple[int, str, Mapping[str, str]]] = []
        self.objects: dict[str, tuple[str, int]] = {}
        self.at_s = 1_000_000.0
        self.looked: list[list[str]] = []
        self.statuses: dict[str, WorkerStatus] = {}
        self.attests: dict[str, list[Attested]] = {}
        self.written_s: float | None = None
        self.missing = set[str]()
        self.login = {"who": "ann@example.com", "from": "ann@laptop"}

    def stray(self, name: str, zone: str, state: str = "READY", labels: Mapping[str, str] = OURS) -> None:
        """A node that nobody asks for."""
        self.zones[name], self.labels[name], self.states[name] = zone, labels, state

    @property
    def kept(self) -> str | None:
        """The controller's state, as it is in the bucket."""
        return self.objects.get(object_of(OWNER.stack), (None, 0))[0]

    def _seen(self, name: str) -> ObservedNode:
        return ObservedNode(
            name,
            self.zones[name],
            self.states[name],
            str(self.instances.get(name, name)),
            self.at_s - 7200,
            self.labels[name],
        )

    def zone(self, zone: str) -> ZoneView:
        if zone in self.silent:
            return ZoneView(None, Failure(Kind.TRANSIENT, "unavailable"))
        names = [name for name, state in [*self.states.items()] if state and self.zones[name] == zone]
        return ZoneView({name: self._seen(name) for name in names})

    def observe(self, zones: Sequence[str]) -> View:
        self.at_s += 1
        self.looked.append([*zones])
        over = [item for item in self._updates if item[0] <= len(self.looked)]
        self._updates = [item for item in self._updates if item not in over]
        self.labels.update({name: labels for _, name, labels in over})
        statuses = {
            name: [replace(self.statuses.get(name, WORKING), at_s=self.at_s - 5)]
            for name, state in [*self.states.items()]
            if state == "READY"
        }
        return View(self.at_s, {zone: self.zone(zone) for zone in zones}, statuses)

    def all_nodes(self) -> list[ObservedNode]:
        return [self._seen(name) for name, state in [*self.states.items()] if state]

    def node(self, zone: str, name: str) -> ObservedNode | None:
        return self._seen(name) if self.states.get(name) and self.zones[name] == zone else None

    def make(self, verb: str, zone: str, name: str) -> None:
        """As the API or Pulumi does. Raises RequestError."""
        self.requests.append((verb, name))
        if failure := Failure(Kind.STOCK_OUT, f"none in {zone}") if zone in self.dry else self.failure:
            raise RequestError(failure)
        self.instances[name] = next(self._made)
        self.zones[name], self.states[name] = zone, "READY"  # the last: others look meanwhile

    def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
        if not self.states.get(name):
            self.labels[name] = body["labels"]
        self.make("create", zone, name)
        return "operation"

    def delete(self, zone: str, name: str) -> None:
        self.requests.append(("delete", name))
        if self.failure:
            raise RequestError(self.failure)
        self.states[name] = ""

    def update(self, zone: str, name: str, body: Mapping[str, Any]) -> None:
        self.updated.append(name)
        if self.refused:
            raise RequestError(self.refused.pop())
        labels = dict(body["labels"])  # as Google does: the mask names the whole map
        if self.update_looks:
            self._updates.append((len(self.looked) + self.update_looks, name, labels))
        else:
            self.labels[name] = labels

    def operation(self, name: str) -> tuple[bool, Failure | None]:
        return True, None

    def attested(self, zone: str, name: str) -> list[Attested]:
        status = self.statuses.get(name, WORKING)
        same = Attested(job=status.work, job_s=self.at_s, final=status.final)
        return self.attests.get(name, [same])

    def remove(self, name: str, generation: int) -> None:
        assert self.objects[name][1] == generation
        del self.objects[name]

    def age_s(self, name: str) -> float | None:
        return self.written_s

    def caller(self) -> dict[str, str]:
        return self.login

    def is_there(self, name: str) -> bool:
        return name not in self.missing

    def json(self, _: str, url: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Lists what is below a prefix: something, unless that is missing."""
        return {} if query["prefix"] in self.missing else {"items": [{"name": "x"}]}

    def read(self, name: str) -> tuple[str, int] | None:
        return self.objects.get(name)

    def read_all(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        return [self.read(name) for name in names]

    def saved(self, prefix: str) -> dict[str, int]:
        return {name: self.objects[name][1] for name in sorted(self.objects) if name.startswith(prefix)}

    def write(self, name: str, text: str, generation: int) -> int:
        if generation != self.objects.get(name, ("", 0))[1]:
            raise RequestError(Failure(Kind.INVALID, "conditionNotMet"))
        self.objects[name] = text, generation + 1
        return generation + 1


class Named:
    """Pulumi's part, which is done at once."""

    def __init__(self, cloud: Cloud):
        self._cloud, self._answers = cloud, list[Answer]()

    def begin(self, request: NodeRequest) -> None:
        try:
            self._cloud.make("up", request.node.zone, request.node.name)
            self._answers.append(Answer(request))
        except RequestError as error:
            self._answers.append(Answer(request, error.failure))

    def ended(self) -> list[Answer]:
        result, self._answers = self._answers, []
        return result


@pytest.fixture(name="world")
def _world(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    cloud = Cloud(settings())
    enter(monkeypatch, cloud, settings())
    return cloud


def enter(
    monkeypatch: pytest.MonkeyPatch, cloud: Cloud, meant: Settings, file: Sequence[Any] = SLICES
) -> None:
    """Has commands find this cloud, and these settings in the file."""

    def read(_: str, slices: Sequence[Mapping[str, Any]] = ()) -> Settings:
        names = {item["name"] for item in slices}
        listed = [item for item in file if item["name"] not in names]
        return settings([*listed, *slices], added=True) if slices else meant

    for module in (environment, supervise):
        monkeypatch.setattr(module, "from_file", read)
        monkeypatch.setattr(module, "read_stack", lambda _: cloud.stack)
    monkeypatch.setattr(environment, "Google", lambda *_: cloud)
    monkeypatch.setattr(environment, "NamedSlices", lambda *_: Named(cloud))
    monkeypatch.setattr(recovery, "_POLL_S", 0.01)
    monkeypatch.setattr(removal, "_POLL_S", 0.01)
    monkeypatch.setattr("infra.slices.preflight.verdict_on", lambda *_: None)
