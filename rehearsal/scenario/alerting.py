"""Steps about alerts: incidents, notifications, first commands of runbooks."""

from __future__ import annotations

import base64
import inspect
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.owner import owner
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step

Incident = dict[str, Any]
_COMMAND = re.compile(r"^## First command\n\n    (.+)$", re.MULTILINE)


@step("wait: no incident is open")
def quiet(scene: Scene, timeout_s: float = 180.0) -> None:
    """Wait until no incident is open; later ones count as new."""

    def closed() -> bool:
        incidents = _incidents(scene)
        still = [_alert(incident) for incident in incidents if incident["state"] == "OPEN"]
        scene.note.text = f"open: {', '.join(still)}" if still else f"{len(incidents)} incidents, all closed"
        if not still:
            scene.incidents = {incident["name"] for incident in incidents}
        return not still

    scene.wait_until("no open incident", closed, timeout_s)


def _check_fired(arguments: Mapping[str, Any]) -> None:
    for pattern in arguments["alerts"].values():
        re.compile(pattern)


@step("alerts: {alerts}, once each", account="ml-engineer", check=_check_fired)
def fired(
    scene: Scene,
    alerts: Mapping[str, str],
    subscription: str,
    mend: str = "",
    clock: float | None = None,
    timeout_s: float = 180.0,
) -> None:
    """Wait until each of these alerts has opened one new incident, and closed it; no other alert may have.

    Each must be published to the topic that `subscription` is of, open and closed. In between, the first
    command of its runbook is run as the notification has it, and must print a match; then `mend`, a command
    that ends the fault.
    """
    messages: list[Incident] = []

    def new() -> dict[str, Incident]:
        incidents = [incident for incident in _incidents(scene) if incident["name"] not in scene.incidents]
        counts = Counter(map(_alert, incidents))
        scene.note.text = f"fired: {dict(counts)}"
        if surplus := counts - Counter(alerts.keys()):
            raise ScenarioFailed(f"expected {', '.join(alerts)}, once each, and not {dict(surplus)}")
        return {_alert(incident): incident for incident in incidents}

    def published(state: str) -> dict[str, Incident] | None:
        messages.extend(_pull(scene, subscription))
        ids = {message["name"].rpartition("/")[2]: alert for alert, message in new().items()}
        matches = {
            ids[message["incident_id"]]: message
            for message in messages
            if message["incident_id"] in ids and message["state"] == state
        }
        return matches if matches.keys() == alerts.keys() else None

    opened = scene.wait_until(f"alerts {', '.join(alerts)}", lambda: published("open"), timeout_s)
    for alert, pattern in alerts.items():
        command = _COMMAND.search(opened[alert]["documentation"]["content"])
        if command is None:
            raise ScenarioFailed(f"the notification of {alert} names no first command")
        _run(scene, alert, command[1], pattern)
    if mend:
        scene.shell.run(["bash", "-c", inspect.cleandoc(mend)])
    rate = scene.control.status()["clock"]["rate"]
    scene.control.set_clock(clock or rate)
    scene.wait_until(f"alerts {', '.join(alerts)} closed", lambda: published("closed"), timeout_s)
    scene.control.set_clock(rate)
    scene.incidents |= {incident["name"] for incident in new().values()}
    scene.note.text = ", ".join(alerts)


def _run(scene: Scene, alert: str, line: str, pattern: str) -> None:
    """Run a runbook's first command with any exit status: `tpu doctor` fails where it reports a defect."""
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
    """Return the incidents published since the last call."""
    name = f"projects/{scene.bucket.project}/subscriptions/{subscription}"
    client = owner(scene)
    request = {"subscription": name, "body": {"maxMessages": 1000}}
    received = client.send("v1", "pubsub.projects.subscriptions.pull", request).get("receivedMessages", [])
    if received:
        done = {"subscription": name, "body": {"ackIds": [message["ackId"] for message in received]}}
        client.send("v1", "pubsub.projects.subscriptions.acknowledge", done)
    return [json.loads(base64.b64decode(message["message"]["data"]))["incident"] for message in received]
