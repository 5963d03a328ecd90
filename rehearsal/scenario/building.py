"""Steps that run the program: preview, up, publish, recover, destroy, settings, commands."""

from __future__ import annotations

import inspect
import json
import re
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.record import Price
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import NOTHING, step
from rehearsal.scenario.watching import ready
from rehearsal.world.checkout import PROJECTS, Layer, change_settings


@step("preview all stacks, with prices", account="platform-engineer")
def preview(scene: Scene) -> None:
    """Print the plan and the price of all stacks, before anything exists."""
    scene.shell.run([sys.executable, "-m", "cli", "plan", scene.environment])
    scene.record.prices = prices(scene)
    scene.note.text = ", ".join(f"{price.node} ${price.usd_hour:.2f}/h" for price in scene.record.prices)


def prices(scene: Scene) -> list[Price]:
    """Return the hourly price of each node by the program's catalog."""
    output = scene.shell.run([sys.executable, "-m", "cli", "infra", "prices", scene.environment, "--json"])
    known = json.loads(output.splitlines()[-1])
    return [
        Price(node, row["hourly"] / count, row["chips"] // count, row["paid"] == "spot", known["read"])
        for row in known["rows"]
        if row["hourly"] is not None and (count := len(row["nodes"]))
        for node in row["nodes"]
    ]


def pulumi(layer: str, *words: str) -> list[str]:
    """Return the command line of the Pulumi CLI for a layer's project, as in the README."""
    folder = [] if PROJECTS[layer] == "." else ["-C", PROJECTS[layer]]
    return ["pulumi", *folder, *words, "--non-interactive", "--color", "never"]


def _check_layers(arguments: Mapping[str, Any]) -> None:
    layers = arguments["layers"] if "layers" in arguments else (arguments["layer"],)
    if not layers:
        raise ValueError("layers: none is named")
    for layer in layers:
        if layer not in PROJECTS:
            raise ValueError(f"layer: {layer!r} is none of {', '.join(PROJECTS)}")


@step("pulumi up: {layers}", account="platform-engineer", check=_check_layers)
def up(scene: Scene, *layers: Layer, refused: str | None = None) -> None:
    """Bring layers' stacks up with the Pulumi CLI, at once; with `refused` each must fail and print it."""
    for name in _nodes(scene) if "tpu" in layers else ():
        scene.forget_boots(name)
    with ThreadPoolExecutor(len(layers)) as pool:
        outputs = list(pool.map(lambda layer: _up(scene, layer, refused), layers))
    scene.note.text = "; ".join(map(summary, outputs)) if refused is None else "refused, as it should be"
    follow_nodes(scene)


def _up(scene: Scene, layer: Layer, refused: str | None) -> str:
    """Return the output of `pulumi up`."""
    stack = scene.environment
    scene.shell.run(pulumi(layer, "stack", "select", "--create", stack))
    command = pulumi(layer, "up", "-s", stack, "--yes", "--skip-preview")
    return scene.shell.run(command, timeout_s=1800, refused=refused)


@step("pulumi preview --expect-no-changes: {layers}", account="platform-engineer")
def unchanged(scene: Scene, *layers: Layer) -> None:
    """Check with `pulumi preview --expect-no-changes` that the stacks match the program."""
    words = ("preview", "-s", scene.environment, "--expect-no-changes")
    with ThreadPoolExecutor(len(layers)) as pool:
        list(pool.map(lambda layer: scene.shell.run(pulumi(layer, *words)), layers))


@step("pulumi destroy: {layer}", account="platform-engineer", check=_check_layers)
def destroy(scene: Scene, layer: Layer, refused: str | None = None) -> None:
    """Destroy a layer's stack; with `refused` it must fail with matching output."""
    # A destroy that must be refused is refused by its preview, before the first resource goes.
    quick = () if refused else ("--skip-preview",)
    command = pulumi(layer, "destroy", "-s", scene.environment, "--yes", *quick)
    output = scene.shell.run(command, timeout_s=1800, refused=refused)
    scene.note.text = summary(output) if refused is None else "refused, as it should be"
    follow_nodes(scene)


@step("publish the bundle: {lock}", account="platform-engineer")
def publish(scene: Scene, lock: str) -> None:
    """Publish the bundle that hosts install, made from this lock: `cpu`, or `bare` (no packages)."""
    command = [sys.executable, "-m", "cli", "publish", scene.environment, "--lock", lock]
    output = scene.shell.run(command, timeout_s=1200)
    match = re.search(r"(\d+ files, \d+ MB)", output)
    scene.note.text = match.group(1) if match else ""


@step("change settings: {changes}")
def settings(scene: Scene, changes: Mapping[str, Any]) -> None:
    """Change keys of the environment's file from here on; None removes a key."""
    change_settings(scene.program, scene.environment, dict(changes))


@step("recover {node}", account="ml-engineer")
def recover(scene: Scene, node: str, timeout_s: float = 600.0) -> None:
    """Bring slices back with `tpu recover`, and wait until the hosts are ready."""
    begun = time.time()
    scene.forget_boots(node)
    line = [sys.executable, "-m", "cli", "fleet", "recover", scene.environment, "--yes"]
    scene.shell.run(line, timeout_s=1800)
    follow_nodes(scene)
    state = (scene.node(node) or {"state": "missing"})["state"]
    if state != "READY":
        raise ScenarioFailed(f"{node} is {state} after the recovery")
    commanded = time.time() - begun
    ready(node, timeout_s).act(scene)
    scene.note.text = f"replaced in {commanded:.0f} s; {scene.note.text}"


@step("tpu fleet {verb}", account="ml-engineer")
def fleet(scene: Scene, verb: Literal["create", "delete"]) -> None:
    """Create or delete the members of fleets with `tpu fleet`."""
    for name in _nodes(scene) if verb == "create" else ():
        scene.forget_boots(name)
    line = [sys.executable, "-m", "cli", "fleet", verb, scene.environment, "--yes"]
    scene.shell.run(line, timeout_s=1800)
    follow_nodes(scene)
    scene.note.text = f"{len(_nodes(scene))} nodes"


@step("$ {run}", account="ml-engineer")
def command(scene: Scene, run: str, prints: str = "", fails: bool = False, timeout_s: float = 600.0) -> None:
    """Run a shell command in the world; with `fails` its exit status must not be 0."""
    refused = (prints or "") if fails else None
    scene.shell.run(
        ["bash", "-c", inspect.cleandoc(run)], timeout_s=timeout_s, refused=refused, prints=prints
    )


@step("ssh to every host of {node}: {run}", account="ml-engineer")
def ssh(scene: Scene, node: str, run: str, prints: str = "", timeout_s: float = 180.0) -> None:
    """Run a shell command on every worker of a node by ssh; each output must match `prints`."""
    hosts = scene.hosts(node)
    scene.shell.ssh(hosts, inspect.cleandoc(run), timeout_s=timeout_s, prints=prints)
    scene.note.text = f"{len(hosts)} hosts"


def _rule(
    what: Mapping[str, Any], match: Mapping[str, Any], when: Mapping[str, Any], times: int | None
) -> dict[str, Any]:
    """Return the rule in the form of the control socket."""
    rule = {"match": dict(match), "when": dict(when), "what": dict(what)}
    return rule if times is None else {**rule, "times": times}


def _check_fault(arguments: Mapping[str, Any]) -> None:
    rule = _rule(**{name: arguments[name] for name in ("what", "match", "when", "times")})
    Faults(VirtualClock()).add(rule)


@step("fault from here on: {name}", check=_check_fault)
def fault(
    scene: Scene,
    name: str,
    what: Mapping[str, Any],
    match: Mapping[str, Any] = NOTHING,
    when: Mapping[str, Any] = NOTHING,
    times: int | None = 1,
) -> None:
    """Inject a fault into requests from here on; a fault that is never observed fails the scenario.

    `match`, `when`, `times` and `what` are the cloud's own (`rehearsal/cloud/door/faults.py`).
    """
    identity = scene.control.add_fault(_rule(what, match, when, times))
    scene.record.faults.append({"id": identity, "name": name, "observed": 0})


def _check_clock(arguments: Mapping[str, Any]) -> None:
    if arguments["rate"] <= 0:
        raise ValueError(f"rate: {arguments['rate']:g} is not positive")


@step("clock at {rate:g} virtual seconds a second", check=_check_clock)
def clock(scene: Scene, rate: float) -> None:
    """Set the clock's rate in virtual seconds per real second."""
    scene.control.set_clock(rate)


@step("quota {name} in {place}: {chips} chips", check=lambda quota: Quotas().set(**quota))
def quota(scene: Scene, name: str, place: str, chips: int) -> None:
    """Set a quota of v6e chips in a region or zone."""
    scene.control.set_quota(name, place, chips)


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


def summary(output: str) -> str:
    """`5 created, 2 unchanged` of what the Pulumi CLI printed."""
    counts = re.findall(
        r"^\s+(?:[+~-]+ )?(\d+) (created|updated|deleted|replaced|unchanged)", output, re.MULTILINE
    )
    return ", ".join(f"{count} {what}" for count, what in counts)
