"""Steps that run the program: preview, up, publish, recover, destroy, settings, commands."""

from __future__ import annotations

import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import steps
from rehearsal.scenario.record import Price
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.watching import ready
from rehearsal.world.program import PROJECTS, change_settings


def preview(scene: Scene, step: steps.Preview) -> None:
    """The plan of all, and the prices, which the report keeps."""
    scene.shell.run([sys.executable, "-m", "infra", "plan", scene.environment])
    scene.record.prices = prices(scene)
    scene.note.text = ", ".join(f"{price.node} ${price.usd_hour:.2f}/h" for price in scene.record.prices)


def prices(scene: Scene) -> list[Price]:
    """What the program's own catalog says that each node costs."""
    output = scene.shell.run([sys.executable, "-m", "infra", "prices", scene.environment, "--json"])
    known = json.loads(output.splitlines()[-1])
    return [
        Price(node, row["hourly"] / count, row["chips"] // count, row["paid"] == "spot", known["read"])
        for row in known["rows"]
        if row["hourly"] is not None and (count := len(row["nodes"]))
        for node in row["nodes"]
    ]


def pulumi(layer: str, *words: str) -> list[str]:
    """The Pulumi CLI on a layer's project, as the README has people type it."""
    folder = [] if PROJECTS[layer] == "." else ["-C", PROJECTS[layer]]
    return ["pulumi", *folder, *words, "--non-interactive", "--color", "never"]


def up(scene: Scene, step: steps.Up) -> None:
    """Bring a stack up; a stack that doesn't exist yet is made first."""
    stack = scene.environment
    scene.shell.run(pulumi(step.layer, "stack", "select", "--create", stack))
    for name in _nodes(scene) if step.layer == "tpu" else ():
        scene.forget_boots(name)
    command = pulumi(step.layer, "up", "-s", stack, "--yes", "--skip-preview")
    output = scene.shell.run(command, timeout_s=1800, refused=step.refused)
    scene.note.text = _summary(output) if step.refused is None else "refused, as it should be"
    follow_nodes(scene)


def unchanged(scene: Scene, step: steps.Unchanged) -> None:
    """What is up is what the program says; all layers are asked at once."""
    words = ("preview", "-s", scene.environment, "--expect-no-changes")
    with ThreadPoolExecutor(len(step.layers)) as pool:
        list(pool.map(lambda layer: scene.shell.run(pulumi(layer, *words)), step.layers))


def destroy(scene: Scene, step: steps.Destroy) -> None:
    """Destroy a stack, or see that it refuses."""
    # A destroy that must be refused is refused by its preview, before the first resource goes.
    quick = () if step.refused else ("--skip-preview",)
    command = pulumi(step.layer, "destroy", "-s", scene.environment, "--yes", *quick)
    output = scene.shell.run(command, timeout_s=1800, refused=step.refused)
    scene.note.text = _summary(output) if step.refused is None else "refused, as it should be"
    follow_nodes(scene)


def publish(scene: Scene, step: steps.Publish) -> None:
    """Put the bundle into the bucket; the command writes its id into the settings."""
    command = [sys.executable, "-m", "cli", "publish", scene.environment, "--lock", step.lock]
    output = scene.shell.run(command, timeout_s=1200)
    found = re.search(r"(\d+ files, \d+ MB)", output)
    scene.note.text = found.group(1) if found else ""


def settings(scene: Scene, step: steps.Settings) -> None:
    """Change the copy's Pulumi.<env>.yaml."""
    change_settings(scene.program, scene.environment, step.set)


def recover(scene: Scene, step: steps.Recover) -> None:
    """Bring a preempted node back and wait for its hosts."""
    begun = time.time()
    scene.forget_boots(step.node)
    scene.shell.run(
        [sys.executable, "-m", "cli", "fleet", "recover", scene.environment, "--yes"], timeout_s=1800
    )
    follow_nodes(scene)
    node = scene.node(step.node)
    if node is None or node["state"] != "READY":
        raise ScenarioFailed(f"{step.node} is {node['state'] if node else 'not there'} after the recovery")
    commanded = time.time() - begun
    ready(scene, steps.Ready(step.node, step.timeout_s))
    scene.note.text = f"replaced in {commanded:.0f} s; {scene.note.text}"


def fleet(scene: Scene, step: steps.Fleet) -> None:
    """Members are made and deleted by `fleet`; it returns when all are there, or gone."""
    for name in _nodes(scene) if step.verb == "create" else ():
        scene.forget_boots(name)
    line = [sys.executable, "-m", "cli", "fleet", step.verb, scene.environment, "--yes"]
    scene.shell.run(line, timeout_s=1800)
    follow_nodes(scene)
    scene.note.text = f"{len(_nodes(scene))} nodes"


def command(scene: Scene, step: steps.Command) -> None:
    """Any shell command in the world."""
    refused = (step.prints or "") if step.fails else None
    scene.shell.run(["bash", "-c", step.run], timeout_s=step.timeout_s, refused=refused, prints=step.prints)


def ssh(scene: Scene, step: steps.Ssh) -> None:
    """A shell command on every host of a node."""
    hosts = scene.hosts(step.node)
    scene.shell.ssh(hosts, step.run, timeout_s=step.timeout_s, prints=step.prints)
    scene.note.text = f"{len(hosts)} hosts"


def fault(scene: Scene, step: steps.Fault) -> None:
    """Put a rule in force; the end of the scenario looks whether it struck."""
    identity = scene.control.add_fault(step.rule)
    scene.record.faults.append({"id": identity, "name": step.name, "observed": 0})


def clock(scene: Scene, step: steps.Clock) -> None:
    """Change how fast virtual time passes."""
    scene.control.set_clock(step.rate)


def quota(scene: Scene, step: steps.Quota) -> None:
    """Change what the project may have."""
    scene.control.set_quota(step.name, step.place, step.chips)


def follow_nodes(scene: Scene) -> None:
    """Count for how long each node has existed: that is what would have been paid for."""
    now = time.time()
    names = _nodes(scene)
    for name in names:
        scene.born.setdefault(name, now)
    for name in scene.born.keys() - set(names):
        scene.record.up_s[name] = scene.record.up_s.get(name, 0.0) + now - scene.born.pop(name)


def _nodes(scene: Scene) -> list[str]:
    return [str(node["name"]) for node in scene.control.status()["nodes"]]


def _summary(said: str) -> str:
    """`5 created, 2 unchanged` of what the Pulumi CLI printed."""
    counts = re.findall(
        r"^\s+(?:[+~-]+ )?(\d+) (created|updated|deleted|replaced|unchanged)", said, re.MULTILINE
    )
    return ", ".join(f"{count} {what}" for count, what in counts)
