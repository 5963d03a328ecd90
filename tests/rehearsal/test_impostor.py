"""A host that speaks for another node: what the steps take for proof, and what they don't let pass."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import impostor
from rehearsal.scenario.impostor_steps import Impostor, Unharmed
from rehearsal.scenario.record import Record
from rehearsal.scenario.scene import Scene

NODE, VICTIM = "tpu-us-east5-b-0", "tpu-us-east5-b-1"
STEP = Impostor(NODE, VICTIM)


class World:
    """Two nodes of one host, two buckets, and a host that says what became of its attempts."""

    def __init__(self) -> None:
        self.tried = {what: allowed[0] for what, allowed in impostor._EXPECTED.items()}
        self.mark = ""
        self.boot = {"state": "failed"}
        self.controllers: list[dict[str, int]] = [{"state.json": 1}, {"state.json": 1}]
        self.landed_on = NODE
        self.id, self.state, self.running = "7", "READY", True

    def ssh(self, hosts: list[str], line: str, **_: Any) -> list[str]:
        assert hosts == [f"{NODE}-w0"]
        words = line.rpartition(" - ")[2].split()
        assert words[:1] + words[3:5] == [VICTIM, "b", "b-fleet"]
        self.mark = words[5]
        return [json.dumps(self.tried)]

    def api(self, scene: Scene, method: str, name: str, verb: str) -> dict[str, Any]:
        if verb:
            items = (
                [{"namespace": "tpu", "key": "boot", "value": self.mark}] if name == self.landed_on else []
            )
            return {"guestAttributes": [{"queryPath": "", "queryValue": {"items": items}}]}
        endpoint = {"ipAddress": "10.0.0.3"}
        return {"name": f"full/{name}", "id": self.id, "state": self.state, "networkEndpoints": [endpoint]}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(impostor, "_api", world.api)
    facts = iter(world.controllers)
    monkeypatch.setattr(
        impostor, "Bucket", lambda *_: SimpleNamespace(name="b-fleet", facts=lambda _: next(facts))
    )
    monkeypatch.setattr(impostor, "_LOOK_S", 0.01)
    return world


@pytest.fixture
def scene(world: World) -> Scene:
    def status() -> dict[str, Any]:
        hosts = lambda name: [{"name": f"{name}-w0", "running": world.running}]  # noqa: E731
        return {"nodes": [{"name": name, "hosts": hosts(name)} for name in (NODE, VICTIM)]}

    shell = SimpleNamespace(ssh=world.ssh, run=lambda words: "some warning\nb-fleet\n")
    scene = Scene(
        cast(Any, SimpleNamespace(header=SimpleNamespace(environment="dev"))), cast(Any, None),
        Record("s", "t", "dev", 1, 0.0), cast(Any, SimpleNamespace(status=status)), cast(Any, shell),
        cast(Any, None), print,
    )  # fmt: skip
    scene.__dict__["bucket"] = SimpleNamespace(project="p", name="b", json=lambda name: world.boot)
    return scene


def test_what_can_be_forged_was_and_the_rest_was_refused(scene: Scene) -> None:
    impostor.impostor(scene, STEP)
    (check,) = scene.record.checks
    assert "could not write guest attributes" in check.claim
    assert "9 of 16 attempts refused" in check.evidence
    impostor.unharmed(scene, Unharmed(VICTIM, 0.05))
    assert "kept" in scene.record.checks[1].claim


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("write the controller's state", 200),
        ("write the controller's state", 404),  # no bucket: nothing was refused
        ("open the controller's bucket", 200),
        ("write one with the other's address", 200),
        ("delete the other", 200),
        ("forge its boot status", 403),  # then nothing was forged, and nothing is shown
        ("write a guest attribute", 403),
    ],
)
def test_an_attempt_that_ends_otherwise_fails_the_story(
    scene: Scene, world: World, what: str, status: int
) -> None:
    world.tried[what] = status
    with pytest.raises(ScenarioFailed, match=f"{what}: {status}, not"):
        impostor.impostor(scene, STEP)


def test_a_forgery_that_did_not_land_proves_nothing(scene: Scene, world: World) -> None:
    world.boot = {"state": "ready"}
    with pytest.raises(ScenarioFailed, match="nothing was forged"):
        impostor.impostor(scene, STEP)


def test_a_changed_state_is_seen_from_outside(scene: Scene, world: World) -> None:
    world.controllers[1] = {"state.json": 2}
    with pytest.raises(ScenarioFailed, match="gs://b-fleet is not what it was"):
        impostor.impostor(scene, STEP)


@pytest.mark.parametrize("landed_on", [VICTIM, "nowhere"])
def test_an_attribute_must_be_the_writers(scene: Scene, world: World, landed_on: str) -> None:
    world.landed_on = landed_on
    with pytest.raises(ScenarioFailed, match="wrote a guest attribute"):
        impostor.impostor(scene, STEP)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "8"}, "READY with the id 8"),
        ({"state": "DELETING"}, "is DELETING"),
        ({"running": False}, "run"),
    ],
)
def test_a_node_that_was_replaced_or_taken_down_is_not_unharmed(
    scene: Scene, world: World, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ScenarioFailed, match="nobody spoke"):
        impostor.unharmed(scene, Unharmed(VICTIM, 0.0))
    impostor.impostor(scene, STEP)
    for name, value in change.items():
        setattr(world, name, value)
    with pytest.raises(ScenarioFailed, match=says):
        impostor.unharmed(scene, Unharmed(VICTIM, 0.0))
