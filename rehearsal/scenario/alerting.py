"""Steps about alerts: incidents, notifications, first commands of runbooks."""

from __future__ import annotations

import base64
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
    """Wait until no incident is open; those that open later are new."""

    def closed() -> bool:
        incidents = _incidents(scene)
        still = [_alert(one) for one in incidents if one["state"] == "OPEN"]
        scene.note.text = f"open: {', '.join(still)}" if still else f"{len(incidents)} incidents, all closed"
        if not still:
            scene.incidents = {one["name"] for one in incidents}
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
        found = [one for one in _incidents(scene) if one["name"] not in scene.incidents]
        counts = Counter(map(_alert, found))
        scene.note.text = f"fired: {dict(counts)}"
        if surplus := counts - Counter(alerts.keys()):
            raise ScenarioFailed(f"expected {', '.join(alerts)}, once each, and not {dict(surplus)}")
        return {_alert(one): one for one in found}

    def published(state: str) -> dict[str, Incident] | None:
        messages.extend(_pull(scene, subscription))
        ids = {one["name"].rpartition("/")[2]: alert for alert, one in new().items()}
        found = {
            ids[one["incident_id"]]: one
            for one in messages
            if one["incident_id"] in ids and one["state"] == state
        }
        return found if found.keys() == alerts.keys() else None

    opened = scene.wait_until(f"alerts {', '.join(alerts)}", lambda: published("open"), timeout_s)
    for alert, pattern in alerts.items():
        found = _COMMAND.search(opened[alert]["documentation"]["content"])
        if found is None:
            raise ScenarioFailed(f"the notification of {alert} names no first command")
        _run(scene, alert, found[1], pattern)
    if mend:
        scene.shell.run(["bash", "-c", mend])
    rate = scene.control.status()["clock"]["rate"]
    scene.control.set_clock(clock or rate)
    scene.wait_until(f"alerts {', '.join(alerts)} closed", lambda: published("closed"), timeout_s)
    scene.control.set_clock(rate)
    scene.incidents |= {one["name"] for one in new().values()}
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
    asked = {"subscription": name, "body": {"maxMessages": 1000}}
    received = client.send("v1", "pubsub.projects.subscriptions.pull", asked).get("receivedMessages", [])
    if received:
        done = {"subscription": name, "body": {"ackIds": [one["ackId"] for one in received]}}
        client.send("v1", "pubsub.projects.subscriptions.acknowledge", done)
    return [json.loads(base64.b64decode(one["message"]["data"]))["incident"] for one in received]
