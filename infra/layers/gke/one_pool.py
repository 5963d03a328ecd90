"""Rules between the settings of one item of `gke:tpuPools`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from infra.catalog import CATALOG
from infra.errors import Problem
from infra.layers.gke.facts import MACHINES, machines_for
from infra.layers.gke.pools import FLEX_START, QUEUED, provisioning
from infra.layers.gke.settings import PoolSettings
from infra.slices import sizes
from views.counts import counted

_SETTING = {"spot": "spot: true", "flex-start": "flexStart: true", "queued": "queued: true"}


def checked(
    path: str, pool: PoolSettings, raw: dict[str, Any], broken: set[str]
) -> tuple[PoolSettings, list[Problem]]:
    """Return a pool with a name and a size, for rules between pools, and its problems."""
    problems = list(_within(path, pool, broken))
    broken.update(problem.path for problem in problems if problem.path != path)
    if sizes.kind_of(pool.accelerator_type, pool.topology) is None:
        broken.add(f"{path}.acceleratorType")
        pool = replace(pool, accelerator_type=CATALOG.types[0].name)
    return replace(pool, name=pool.name or path), problems


def _within(path: str, pool: PoolSettings, broken: set[str]) -> Iterator[Problem]:
    def fine(*keys: str) -> bool:
        return not any(f"{path}.{key}" in broken for key in keys)

    if fine("topology"):
        yield from sizes.problems(
            path, pool.accelerator_type, pool.topology, type_known=fine("acceleratorType")
        )
    if fine("topology", "acceleratorType", "machineType", "numNodes"):
        yield from _machines(path, pool)
    models = provisioning(pool)
    if len(models) > 1:
        given = " and ".join(_SETTING.get(name, f"reservation: {pool.reservation}") for name in models)
        yield Problem(
            path,
            given,
            "nodes are provisioned in one way, or in none of these (on demand)",
            "keep one of them",
        )
    elif pool.max_run_duration_s and not set(models) & {FLEX_START, QUEUED}:
        yield Problem(
            f"{path}.maxRunDurationS", str(pool.max_run_duration_s),
            "only flex-start and queued nodes have a life time", "remove it, or add flexStart: true",
        )  # fmt: skip


def _machines(path: str, pool: PoolSettings) -> Iterator[Problem]:
    kind = sizes.kind_of(pool.accelerator_type, pool.topology)
    if kind is None:
        return
    able = machines_for(kind)
    given = next((machine for machine in MACHINES if machine.name == pool.machine_type), able[0])
    if given not in able:
        yield Problem(
            f"{path}.machineType", f'"{given.name}" for {kind.name}',
            f"a {kind.topology} slice is built of {' or '.join(machine.name for machine in able)}",
            f"write {able[0].name}, or remove it",
        )  # fmt: skip
    elif pool.num_nodes not in (None, nodes := kind.chips // given.chips):
        yield Problem(
            f"{path}.numNodes", str(pool.num_nodes),
            f"a {kind.topology} slice of {given.name} has {counted(nodes, 'node')} "
            f"with {counted(given.chips, 'chip')} each",
            f"write {nodes}, or remove it",
        )  # fmt: skip
