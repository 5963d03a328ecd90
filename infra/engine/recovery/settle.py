"""Recover a stack after an interrupted `pulumi`: clear its stale lock, reconcile its state with Google Cloud.

Without it an update would create existing resources again (409), and a `destroy` would miss unknown ones.
"""

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.core.layer import directory
from infra.engine.pulumi import Pulumi
from infra.engine.recovery.interrupted import (
    Record,
    called,
    interrupted,
    mark_of,
    mark_pending,
    marked,
    state_of,
)
from infra.engine.recovery.locks import locks, torn
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.settings.sources import ROOT

_LOG = logging.getLogger(__name__)

# How long after its sender is gone a request may show at Google at the latest. Our choice: Google says
# nothing on it; operations on networks and disks end within a minute.
CREATION_SHOWS_S, DELETION_SHOWS_S = 15.0, 120.0
POLL_S = 5.0
# As long as the program lets Pulumi wait for the largest slice.
NODE_PATIENCE_S = 3600.0


@dataclass(frozen=True)
class Patience:
    """Waiting times in seconds: for requests under way, and between two polls."""

    creation_s: float = CREATION_SHOWS_S
    deletion_s: float = DELETION_SHOWS_S
    poll_s: float = POLL_S

    def until_shown_s(self, made_s: Iterable[float]) -> float:
        """Return how long creations at these Unix times may take to show, by a clock that may be wrong."""
        newest_s = max(made_s, default=-math.inf)
        return max(0.0, min(self.creation_s, newest_s + self.creation_s - time.time()))


def settle(
    environment: str,
    layer: str,
    root: Path = ROOT,
    *,
    patience: Patience = Patience(),
    until_made: bool = True,
) -> list[str]:
    """Bring a layer's state in line with Google after a killed `pulumi`; nothing is created or deleted there.

    Args:
        environment, layer, root: the stack, of the project at `root`.
        patience: see `Patience`.
        until_made: wait also for slices that are still being made.

    Returns:
        A line for each change; none if nothing was to be done, at the cost of a look at the locks and one
        `stack export`.

    Raises:
        CommandError: a live lock, a refused read, or a resource of unknown id, with the next command. The
            next call resumes the work.
    """
    pulumi = Pulumi(environment, root)
    done = _put_locks_aside(pulumi, layer)  # first: the state of an update that runs is none to work on
    state = pulumi.export(layer)
    if state is None:
        return done
    if state["deployment"].get("pending_operations"):
        mark_pending(state["deployment"], from_file(environment, root).project)
        _write(pulumi, layer, state)
    return done + _look(pulumi, layer, state, patience, until_made)


def unsettled(environment: str, layer: str, root: Path = ROOT) -> list[str]:
    """Describe what `settle` would do; changes nothing."""
    pulumi = Pulumi(environment, root)
    state = pulumi.export(layer)
    if state is None:
        return []
    lines = [f"locked by {lock}{', which is gone' if lock.gone else ''}" for lock in locks(pulumi, layer)]
    return lines + interrupted(state["deployment"])


def settle_command(layer: str, environment: str) -> str:
    """Return the command that settles a layer."""
    return f"tpu infra settle {environment} {layer}"


def _put_locks_aside(pulumi: Pulumi, layer: str) -> list[str]:
    held = locks(pulumi, layer)
    alive = [lock for lock in held if not lock.gone]
    if alive:
        cancel = f"pulumi -C {directory(layer)} cancel -s {pulumi.environment}"
        raise CommandError(
            f"{layer} is being worked on: locked by {', '.join(map(str, alive))}\n"
            f"    fix: wait until that ends; where you know that it is dead: {cancel} --yes, and then "
            f"{settle_command(layer, pulumi.environment)}"
        )
    empty = torn(pulumi, layer)
    for path in empty:
        path.unlink(missing_ok=True)
    if held:
        pulumi.execute(layer, "cancel", "--yes", "--stack", pulumi.environment)
    return [
        *(f"put aside the lock of {lock}, which is gone" for lock in held),
        *(f"removed {path.name}, which a killed pulumi left empty" for path in empty),
    ]


def _look(
    pulumi: Pulumi,
    layer: str,
    state: Record,
    patience: Patience,
    until_made: bool,
) -> list[str]:
    """Refresh marked resources until their state is known; return a line on each."""
    done: dict[str, str] = {}
    begun = time.monotonic()
    while unsure := marked(state["deployment"]):
        if not until_made:
            unsure = [record for record in unsure if mark_of(record)[0] or state_of(record) != "CREATING"]
            if not unsure:
                break
        # A creation that doesn't show is dropped by the refresh, so it must have had its time before.
        made = [at for doing, at in map(mark_of, unsure) if doing == "creating"]
        if wait_s := patience.until_shown_s(made):
            _LOG.warning(
                "%s: an interrupted creation may still show at Google: %.0f s to wait", layer, wait_s
            )
            time.sleep(wait_s)
        urns = dict.fromkeys(record["urn"] for record in unsure)
        targets = [part for urn in urns for part in ("--target", urn)]
        pulumi.execute(layer, "refresh", "--yes", "--skip-preview", "--stack", pulumi.environment, *targets)
        state = pulumi.export(layer) or state
        again = []
        for record in unsure:
            refreshed = _same(record, state["deployment"])
            done[f"{record['urn']} {record.get('id')}"] = _outcome(record, refreshed)
            if refreshed and _is_on_its_way(record, refreshed, patience, until_made):
                again.append((record, refreshed))
        if not again:
            break
        if time.monotonic() - begun > NODE_PATIENCE_S:
            on = ", ".join(f"{called(record)} ({state_of(record)})" for _, record in again)
            raise CommandError(
                f"{layer}: Google is still at work after an hour: {on}\n"
                f"    fix: {settle_command(layer, pulumi.environment)}, later"
            )
        resources = state["deployment"]["resources"]
        for record, refreshed in again:
            if mark_of(record)[0]:
                refreshed["initErrors"] = record["initErrors"]
                resources[resources.index(refreshed)] = refreshed
        _write(pulumi, layer, state)
        _LOG.warning("%s: waiting for Google: %s", layer, ", ".join(called(record) for record, _ in again))
        time.sleep(patience.poll_s)
    return list(done.values())


def _same(record: Record, deployment: Mapping[str, Any]) -> Record | None:
    """Return the resource after a refresh, which may have another form of its id."""
    candidates = [
        resource for resource in deployment.get("resources") or () if resource["urn"] == record["urn"]
    ]
    exact = [resource for resource in candidates if resource.get("id") == record.get("id")]
    rest = [resource for resource in candidates if bool(resource.get("delete")) == bool(record.get("delete"))]
    return next(iter(exact or rest), None)


def _is_on_its_way(record: Record, refreshed: Record, patience: Patience, until_made: bool) -> bool:
    """Return True while Google is known to work on a resource."""
    doing, at = mark_of(record)
    if state := state_of(refreshed):
        return state == "DELETING" or (state == "CREATING" and until_made)
    return doing == "deleting" and time.time() < at + patience.deletion_s


def _outcome(record: Record, refreshed: Record | None) -> str:
    doing = mark_of(record)[0]
    if doing == "creating":
        return f"{called(record)}: " + (
            "made, and imported" if refreshed else "never made; its record is dropped"
        )
    if refreshed is None:
        return f"{called(record)}: gone, and taken out of the state"
    return f"{called(record)}: " + ("still there" if doing == "deleting" else "read again")


def _write(pulumi: Pulumi, layer: str, state: Mapping[str, Any]) -> None:
    pulumi.execute(layer, "stack", "import", "--stack", pulumi.environment, given=json.dumps(state))
