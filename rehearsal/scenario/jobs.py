"""Steps about jobs of any author: heartbeats, lines in Cloud Logging, commands beside the scenario."""

from __future__ import annotations

import inspect
import re
import urllib.request
from typing import Any, Literal

import google.auth
from google.auth.transport.requests import AuthorizedSession

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.building import follow_nodes
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step
from rehearsal.world.checkout import read_settings

_LIST = "https://logging.googleapis.com/v2/entries:list"
_LOG = "tpu-host"
_SCOPE = "https://www.googleapis.com/auth/logging.read"


@step("wait: the logs of {node}'s {workers} workers match {prints}")
def logged(
    scene: Scene,
    node: str,
    workers: int,
    prints: str,
    unit: str = "tpu-job.service",
    timeout_s: float = 300.0,
) -> None:
    """Wait until Cloud Logging has a matching line of each of a node's workers, even if the node is gone."""
    project = str(read_settings(scene.program, scene.environment)["gcp:project"])
    matches: dict[int, str] = {}

    def all_have() -> bool:
        for worker in range(workers):
            lines = [] if worker in matches else lines_of(project, node, worker, unit)
            for line in lines:
                if match := re.search(prints, line):
                    matches[worker] = match[0]
        scene.note.text = f"{len(matches)} of {workers}"
        return len(matches) == workers

    scene.wait_until(f"{prints!r} in the logs of {node}", all_have, timeout_s, poll_s=1.0)
    described = scene.node(node)
    output = "; ".join(dict.fromkeys(matches[worker] for worker in sorted(matches)))
    if described is None or not any(host["running"] for host in described["hosts"]):
        gone = "gone" if described is None else str(described["state"])
        claim = f"what {node}'s workers printed is there when its hosts aren't"
        scene.record.checks.append(Check(claim, f"{workers} workers, node {gone}: {output}"))
        output = f"node {gone}: {output}"
    scene.note.text = output


def lines_of(project: str, node: str, worker: int, unit: str) -> list[str]:
    """Return the lines that a worker's unit printed, oldest first; none while the API can't be reached."""
    credentials, _ = google.auth.default(scopes=[_SCOPE])
    desired = {"logName": f"projects/{project}/logs/{_LOG}", "labels.node": node, "labels.unit": unit}
    request: dict[str, Any] = {
        "resourceNames": [f"projects/{project}"],
        "filter": " AND ".join(
            f'{key}="{value}"' for key, value in {**desired, "labels.worker": worker}.items()
        ),
        "pageSize": 1000,
    }
    lines: list[str] = []
    with AuthorizedSession(credentials) as session:  # type: ignore[no-untyped-call]
        while True:
            reply = session.post(_LIST, json=request, timeout=30)
            if reply.status_code != 200:
                raise ScenarioFailed(f"the log can't be read: HTTP {reply.status_code}: {reply.text}")
            page = reply.json()
            lines += [
                str(entry.get("textPayload") or entry.get("jsonPayload", {}).get("message", ""))
                for entry in page.get("entries", ())
            ]
            if not page.get("nextPageToken"):
                return lines
            request["pageToken"] = page["nextPageToken"]


@step("wait: {node}'s {workers} workers report {state}")
def heartbeat(
    scene: Scene,
    node: str,
    workers: int,
    state: Literal["running", "done", "failed"],
    why: str = "",
    timeout_s: float = 300.0,
) -> None:
    """Wait until each of a node's workers has reported this state of its job, and a matching reason."""
    prefix = f"heartbeats/{node}/worker-"
    before = scene.bucket.facts(prefix)
    reasons: dict[str, str] = {}

    def all_reached() -> bool:
        for name, metadata in scene.bucket.metadata(prefix).items():
            reason = metadata.get("why", "")
            if metadata.get("state") == state and re.search(why, reason):
                reasons[name] = reason
        states = sorted(metadata.get("state", "?") for metadata in scene.bucket.metadata(prefix).values())
        scene.note.text = f"{len(reasons)} of {workers} were {state}; now {', '.join(states)}"
        return len(reasons) == workers

    scene.wait_until(f"{node}: {state}", all_reached, timeout_s)
    if state == "running" and scene.bucket.facts(prefix) == before:
        raise ScenarioFailed(f"no worker of {node} has reported since the step began")
    scene.note.text = "; ".join(dict.fromkeys(reasons.values())) or state


@step("$ {run} &", account="ml-engineer")
def start(scene: Scene, name: str, run: str) -> None:
    """Start a command that runs beside the scenario until `stop`."""
    scene.shell.start(name, ["bash", "-c", inspect.cleandoc(run)])


@step("stop {name}")
def stop(scene: Scene, name: str, prints: str = "", wait: bool = False, timeout_s: float = 600.0) -> None:
    """Press Ctrl+C in a started command, or wait for its end; its output must match `prints`."""
    status = 0 if wait else 130
    output = scene.shell.stop(name, status=status, prints=prints, timeout_s=timeout_s, interrupt=not wait)
    scene.note.text = (output.strip().splitlines() or [""])[-1]
    follow_nodes(scene)


@step("save http://localhost:{port} as {name}.html")
def page(scene: Scene, name: str, port: int, prints: str = "") -> None:
    """Save the page served on a local port beside the report; its text must match `prints`."""
    with urllib.request.urlopen(f"http://localhost:{port}", timeout=30) as answer:
        content = answer.read()
    text = content.decode(errors="replace")
    (scene.shell.logs.parent / f"{name}.html").write_bytes(content)
    if not re.search(prints, text):
        raise ScenarioFailed(f"{name}.html holds no match of {prints!r}")
    scene.note.text = f"{len(content) / 1024:.0f} KiB"
