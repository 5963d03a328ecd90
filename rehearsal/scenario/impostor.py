"""Steps about a host that speaks for another node: what it can forge, what it can't, and who believes it."""

from __future__ import annotations

import base64
import json
import shlex
import time
import uuid
from pathlib import Path
from typing import Any

import google.auth
from google.auth.transport.requests import AuthorizedSession

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import building
from rehearsal.scenario.bucket import Bucket
from rehearsal.scenario.impostor_steps import Impostor, Unharmed
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene

_SCRIPT = Path(__file__).with_name("impostor_on_host.py")
_PYTHON = "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt /opt/tpu/venv/bin/python"
_SSH_S = 120.0
_LOOK_S = 1.0
_TIMEOUT_S = 60.0
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

# What becomes of each attempt. What is allowed must have worked, or the step would prove nothing.
_EXPECTED: dict[str, tuple[int, ...]] = {
    "read the other's boot status": (200,),
    "forge its heartbeat": (200,),
    "delete its heartbeat": (204,),
    "forge its heartbeat again": (200,),
    "forge its boot status": (200,),
    "write the controller's state": (403,),
    "read the controller's state": (403,),
    "delete the controller's state": (403,),
    "list the controller's bucket": (403,),
    "open the controller's bucket": (403,),
    "write a guest attribute": (200,),
    "write one with the other's address": (403,),
    "write one with the other's name": (200,),  # of its own node
    "write one at the other's address": (0,),
    "write the other's metadata": (403,),
    "delete the other": (403,),
}


def impostor(scene: Scene, step: Impostor) -> None:
    """Try it all on the first host, then look from outside at what it came to."""
    (host, *_), other = scene.hosts(step.node), _node(scene, step.victim)
    controllers = Bucket(scene.bucket.project, _controllers(scene))
    before, mark = controllers.facts(""), f"forged-{uuid.uuid4()}"
    address = other["networkEndpoints"][0]["ipAddress"]
    words = [step.victim, address, other["name"], scene.bucket.name, controllers.name, mark]
    script = base64.b64encode(_SCRIPT.read_bytes()).decode()
    line = f"echo {script} | base64 --decode | {_PYTHON} - {shlex.join(words)}"
    (output,) = scene.shell.ssh([host], line, timeout_s=_SSH_S, prints="delete the other")
    tried = json.loads(output.splitlines()[-1])
    wrong = [
        f"{what}: {tried.get(what)}, not {' or '.join(map(str, allowed))}"
        for what, allowed in _EXPECTED.items()
        if tried.get(what) not in allowed
    ]
    if wrong:
        raise ScenarioFailed(f"{host} as an impostor: {'; '.join(wrong)}")
    for name in (f"boot/{step.victim}/worker-0.json", f"heartbeats/{step.victim}/worker-0"):
        if (scene.bucket.json(name) or {}).get("state") != "failed":
            raise ScenarioFailed(f"{host} has written {name}, and it doesn't say so: nothing was forged")
    if controllers.facts("") != before:
        raise ScenarioFailed(f"gs://{controllers.name} is not what it was before {host} tried to write there")
    own, others = (_attributes(scene, node) for node in (step.node, step.victim))
    if mark not in json.dumps(own[0]) or mark in json.dumps([*own[1:], *others]):
        raise ScenarioFailed(
            f"{host} wrote a guest attribute: {step.node} says {own}, {step.victim} {others}"
        )
    scene.spoken_for[step.victim] = str(other["id"])
    refused = sum(200 not in allowed and 204 not in allowed for allowed in _EXPECTED.values())
    scene.note.text = f"{refused} of {len(_EXPECTED)} attempts refused"
    scene.record.checks.append(
        Check(
            f"{step.node} could not write guest attributes of {step.victim}, nor the controller's state",
            f"{scene.note.text}; objects in the checkpoint bucket were forged",
        )
    )


def unharmed(scene: Scene, step: Unharmed) -> None:
    """The node is for all that time the one that it was when another spoke for it."""
    if step.node not in scene.spoken_for:
        raise ScenarioFailed(f"nobody spoke for {step.node}; put an `impostor` step in front")
    end = time.monotonic() + step.for_s
    while True:
        found = _node(scene, step.node)
        hosts = (scene.node(step.node) or {"hosts": ()})["hosts"]
        if (found["id"], found["state"]) != (scene.spoken_for[step.node], "READY"):
            raise ScenarioFailed(
                f"{step.node} is {found['state']} with the id {found['id']}; when it was spoken for, "
                f"it was READY with {scene.spoken_for[step.node]}"
            )
        if not hosts or not all(host["running"] for host in hosts):
            raise ScenarioFailed(f"{step.node} has hosts that don't run")
        if time.monotonic() > end:
            break
        time.sleep(_LOOK_S)
    scene.note.text = f"the same instance, READY, for {step.for_s:.0f} s"
    scene.record.checks.append(
        Check("a node that another spoke for is kept", f"{step.node}: {scene.note.text}")
    )


def _controllers(scene: Scene) -> str:
    """The bucket's name, as its stack tells it."""
    words = building.pulumi("storage", "stack", "output", "controllerBucketName", "-s", scene.environment)
    return scene.shell.run(words).split()[-1]


def _node(scene: Scene, name: str) -> dict[str, Any]:
    """The node as the TPU API has it; ScenarioFailed if it has none."""
    return _api(scene, "GET", name, "")


def _attributes(scene: Scene, name: str) -> list[dict[str, Any]]:
    """What each worker says of itself."""
    return list(_api(scene, "POST", name, ":getGuestAttributes")["guestAttributes"])


def _api(scene: Scene, method: str, name: str, verb: str) -> dict[str, Any]:
    found = scene.node(name)
    if found is None:
        raise ScenarioFailed(f"there is no node {name}: somebody deleted it")
    full = f"projects/{scene.bucket.project}/locations/{found['zone']}/nodes/{name}"
    credentials, _ = google.auth.default(scopes=[_SCOPE])
    url = f"https://tpu.googleapis.com/v2/{full}{verb}"
    with AuthorizedSession(credentials) as session:  # type: ignore[no-untyped-call]
        answer = session.request(method, url, timeout=_TIMEOUT_S)  # type: ignore[no-untyped-call]
    if answer.status_code != 200:
        raise ScenarioFailed(f"{method} {url}: {answer.status_code} {answer.text}")
    return dict(answer.json())
