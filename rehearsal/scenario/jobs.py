"""Acts the steps of `jobsteps.py`: what workers say of a job, where it outlives them."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import google.auth
from google.auth.transport.requests import AuthorizedSession

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import jobsteps
from rehearsal.scenario.building import follow_nodes
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene
from rehearsal.world.program import read_settings

_LIST = "https://logging.googleapis.com/v2/entries:list"
_LOG = "tpu-host"
_SCOPE = "https://www.googleapis.com/auth/logging.read"


def logged(scene: Scene, step: jobsteps.Logged) -> None:
    """Every worker's log has such a line."""
    project = str(read_settings(scene.program, scene.environment)["gcp:project"])
    found: dict[int, str] = {}

    def all_have() -> bool:
        for worker in range(step.workers):
            lines = [] if worker in found else _lines(project, step.node, worker, step.unit)
            for line in lines:
                if match := re.search(step.prints, line):
                    found[worker] = match[0]
        scene.note.text = f"{len(found)} of {step.workers}"
        return len(found) == step.workers

    scene.wait_until(f"{step.prints!r} in the logs of {step.node}", all_have, step.timeout_s, poll_s=1.0)
    node = scene.node(step.node)
    output = "; ".join(dict.fromkeys(found[worker] for worker in sorted(found)))
    if node is None or not any(host["running"] for host in node["hosts"]):
        gone = "gone" if node is None else str(node["state"])
        claim = f"what {step.node}'s workers printed is there when its hosts aren't"
        scene.record.checks.append(Check(claim, f"{step.workers} workers, node {gone}: {output}"))
        output = f"node {gone}: {output}"
    scene.note.text = output


def _lines(project: str, node: str, worker: int, unit: str) -> list[str]:
    """All that a worker's unit printed, oldest first; nothing while the API can't say."""
    credentials, _ = google.auth.default(scopes=[_SCOPE])
    desired = {"logName": f"projects/{project}/logs/{_LOG}", "labels.node": node, "labels.unit": unit}
    asked: dict[str, Any] = {
        "resourceNames": [f"projects/{project}"],
        "filter": " AND ".join(
            f'{key}="{value}"' for key, value in {**desired, "labels.worker": worker}.items()
        ),
        "pageSize": 1000,
    }
    lines: list[str] = []
    with AuthorizedSession(credentials) as session:  # type: ignore[no-untyped-call]
        while True:
            reply = session.post(_LIST, json=asked, timeout=30)
            if reply.status_code != 200:
                raise ScenarioFailed(f"the log can't be read: HTTP {reply.status_code}: {reply.text}")
            page = reply.json()
            lines += [
                str(entry.get("textPayload") or entry.get("jsonPayload", {}).get("message", ""))
                for entry in page.get("entries", ())
            ]
            if not page.get("nextPageToken"):
                return lines
            asked["pageToken"] = page["nextPageToken"]


def heartbeat(scene: Scene, step: jobsteps.Heartbeat) -> None:
    """Every worker has said so since the step began, each at a time of its own."""
    prefix = f"heartbeats/{step.node}/worker-"
    before = scene.bucket.facts(prefix)
    found: dict[str, str] = {}

    def all_said() -> bool:
        for name, metadata in scene.bucket.metadata(prefix).items():
            why = metadata.get("why", "")
            if metadata.get("state") == step.state and re.search(step.why, why):
                found[name] = why
        states = sorted(each.get("state", "?") for each in scene.bucket.metadata(prefix).values())
        scene.note.text = f"{len(found)} of {step.workers} said {step.state}; now {', '.join(states)}"
        return len(found) == step.workers

    scene.wait_until(f"{step.node}: {step.state}", all_said, step.timeout_s)
    if step.state == "running" and scene.bucket.facts(prefix) == before:
        raise ScenarioFailed(f"nobody of {step.node} has said anything since the step began")
    scene.note.text = "; ".join(dict.fromkeys(found.values())) or step.state


def start(scene: Scene, step: jobsteps.Start) -> None:
    """A command beside the scenario; its output is seen as it is printed."""
    scene.shell.start(step.name, ["bash", "-c", step.run])


def stop(scene: Scene, step: jobsteps.Stop) -> None:
    """Its end, as it is asked for."""
    status = 0 if step.wait else 130
    output = scene.shell.stop(
        step.name, status=status, prints=step.prints, timeout_s=step.timeout_s, interrupt=not step.wait
    )
    scene.note.text = (output.strip().splitlines() or [""])[-1]
    follow_nodes(scene)


def page(scene: Scene, step: jobsteps.Page) -> None:
    """What a browser would get now."""
    with urllib.request.urlopen(f"http://localhost:{step.port}", timeout=30) as answer:
        content = answer.read()
    text = content.decode(errors="replace")
    (scene.shell.logs.parent / f"{step.name}.html").write_bytes(content)
    if not re.search(step.prints, text):
        raise ScenarioFailed(f"{step.name}.html holds no match of {step.prints!r}")
    scene.note.text = f"{len(content) / 1024:.0f} KiB"
