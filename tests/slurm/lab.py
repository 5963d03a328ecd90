"""A cluster's settings, and Slurm's nodes in memory, which obey updates as Slurm was seen to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from infra.engine.settings import parse
from infra.layers.slurm import slices
from infra.layers.slurm.slices import Reached
from infra.settings.schema import Settings
from infra.settings.sources import as_pulumi_hands_it_over
from slurm.cluster import Cluster
from slurm.decide import State, Update
from slurm.errors import SlurmError
from slurm.jobs import Job
from slurm.nodes import SlurmNode
from tests.infra.recording import BASE

REACHED = Reached("10.0.0.2", "10.0.0.2:/home")
NODESET: dict[str, Any] = {
    "name": "tpu", "acceleratorType": "v6e-16", "zone": "us-east5-b", "nodeCountDynamicMax": 8, "spot": True,
}  # fmt: skip
SLURM: dict[str, Any] = {"slurm:nodesets": [NODESET], "slurm:bundle": "0" * 64}


def values(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the values of a settings file with a cluster."""
    every = {**BASE, **SLURM, **(given or {})}
    return {key: value for key, value in every.items() if value is not None}


def settings(given: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of an environment dev with a cluster."""
    return parse("dev", as_pulumi_hands_it_over(values(given), "f"), "f")


class Nodes:
    """Slurm's nodes of the settings; all are powered down at first."""

    def __init__(self, known: Settings):
        hosts = [host for slice_ in slices.slices(known) for host in slices.hosts(known, slice_)]
        self.nodes = {host: SlurmNode(host, "IDLE", frozenset({"CLOUD", "POWERED_DOWN"})) for host in hosts}
        self.updates: list[Update] = []
        self.queue: list[Job] = []
        self.silent = False

    def read(self) -> Cluster:
        if self.silent:
            raise SlurmError("scontrol show node: status 1: Unable to contact slurm controller")
        return Cluster(dict(self.nodes), self.queue)

    def update(self, update: Update) -> None:
        self.updates.append(update)
        for host in update.hosts:
            node = self.nodes[host]
            match update.state:
                case State.FORCE:
                    self.set(host, "IDLE", "POWERING_DOWN", reason=update.reason)
                case State.DRAIN:
                    self.nodes[host] = replace(node, flags=node.flags | {"DRAIN"}, reason=update.reason)
                case State.RESUME:
                    self.nodes[host] = replace(node, base="IDLE", flags=node.flags - {"DRAIN"}, reason="")
                case State.UP:
                    self.set(host, "IDLE", "POWERING_UP")
                case State.ASAP:
                    self.set(host, "IDLE", "POWERING_DOWN", reason=update.reason)

    def set(self, prefix: str, base: str, *flags: str, reason: str = "") -> None:
        """Bring a host, or all of a slice, into a state."""
        for host in self.nodes:
            if host == prefix or host.startswith(f"{prefix}-w"):
                self.nodes[host] = SlurmNode(host, base, frozenset({"CLOUD", *flags}), reason)
