"""Acts the steps about alerts (`pipeline_steps.py`): incidents, notifications, the commands of runbooks."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
from collections import Counter
from typing import Any

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import pipeline_steps as steps
from rehearsal.scenario.owner import owner
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene

Incident = dict[str, Any]
_COMMAND = re.compile(r"^## First command\n\n    (.+)$", re.MULTILINE)


def quiet(scene: Scene, step: steps.Quiet) -> None:
    """All are closed, and known."""

    def closed() -> bool:
        incidents = _incidents(scene)
        still = [_alert(one) for one in incidents if one["state"] == "OPEN"]
        scene.note.text = f"open: {', '.join(still)}" if still else f"{len(incidents)} incidents, all closed"
        if not still:
            scene.incidents = {one["name"] for one in incidents}
        return not still

    scene.wait_until(str(step), closed, step.timeout_s)


def fired(scene: Scene, step: steps.Fired) -> None:
    """Opened, published, looked into, closed."""
    messages: list[Incident] = []

    def new() -> dict[str, Incident]:
        found = [one for one in _incidents(scene) if one["name"] not in scene.incidents]
        counts = Counter(map(_alert, found))
        scene.note.text = f"fired: {dict(counts)}"
        if surplus := counts - Counter(step.alerts.keys()):
            raise ScenarioFailed(f"expected {', '.join(step.alerts)}, once each, and not {dict(surplus)}")
        return {_alert(one): one for one in found}

    def published(state: str) -> dict[str, Incident] | None:
        messages.extend(_pull(scene, step.subscription))
        ids = {one["name"].rpartition("/")[2]: alert for alert, one in new().items()}
        found = {
            ids[one["incident_id"]]: one
            for one in messages
            if one["incident_id"] in ids and one["state"] == state
        }
        return found if found.keys() == step.alerts.keys() else None

    opened = scene.wait_until(str(step), lambda: published("open"), step.timeout_s)
    for alert, pattern in step.alerts.items():
        found = _COMMAND.search(opened[alert]["documentation"]["content"])
        if found is None:
            raise ScenarioFailed(f"the notification of {alert} names no first command")
        _run(scene, alert, found[1], pattern)
    if step.mend:
        scene.shell.run(["bash", "-c", step.mend])
    rate = scene.control.status()["clock"]["rate"]
    scene.control.set_clock(step.clock or rate)
    scene.wait_until(f"{step}, closed", lambda: published("closed"), step.timeout_s)
    scene.control.set_clock(rate)
    scene.incidents |= {one["name"] for one in new().values()}
    scene.note.text = ", ".join(step.alerts)


def _run(scene: Scene, alert: str, line: str, pattern: str) -> None:
    """Whatever its exit status: `tpu doctor` fails where there is something to mend."""
    program = shlex.split(line)[0]
    if shutil.which(program) is None:
        scene.record.checks.append(Check(f"{alert} fires", f"not run, since there is no {program}: {line}"))
        return
    scene.shell.run(["bash", "-c", f"{line}\necho exit status $?"], prints=pattern)
    scene.record.checks.append(Check(f"{alert} fires once, is published, and closes", f"run: {line}"))


def _incidents(scene: Scene) -> list[Incident]:
    arguments = {"parent": f"projects/{scene.bucket.project}"}
    answer = owner(scene).send("v3", "monitoring.projects.alerts.list", arguments)
    return list(answer.get("alerts", ()))


def _alert(incident: Incident) -> str:
    return str(incident["policy"]["userLabels"]["alert"])


def _pull(scene: Scene, subscription: str) -> list[Incident]:
    """What was published since the last time."""
    name = f"projects/{scene.bucket.project}/subscriptions/{subscription}"
    client = owner(scene)
    asked = {"subscription": name, "body": {"maxMessages": 1000}}
    received = client.send("v1", "pubsub.projects.subscriptions.pull", asked).get("receivedMessages", [])
    if received:
        done = {"subscription": name, "body": {"ackIds": [one["ackId"] for one in received]}}
        client.send("v1", "pubsub.projects.subscriptions.acknowledge", done)
    return [json.loads(base64.b64decode(one["message"]["data"]))["incident"] for one in received]
