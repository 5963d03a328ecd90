"""A task of srun: its place among the slices of its step, from the variables that srun sets.

https://slurm.schedmd.com/archive/slurm-22.05.8/srun.html, "OUTPUT ENVIRONMENT VARIABLES". A slice is a switch
of Slurm's topology, whose name begins its hosts' names: `tpu.tpu-1.tpu-1-w0` is host 0 of slice tpu-1. JAX's
own detection isn't used: it takes the first host by its name in Slurm, which no name server knows, and a port
that depends on the job's number, which no firewall passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from workload.errors import Problem

TASK = "SLURM_PROCID"
"""Set in each task that srun starts, and in the batch script, which is none of them."""

_OUTSIDE = re.compile(r",(?![^\[]*\])")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_HOST = re.compile(r"(?P<slice>[a-z][-a-z0-9]*-\d{1,5})-w(?P<worker>\d{1,5})")
_ALIAS = re.compile(r"([^:,]+):\[?([^\],]+)\]?:([^,]+)")
_FIX = "start it with srun, one task on each host: srun --ntasks-per-node=1 workload launch -- PROGRAM"


@dataclass(frozen=True)
class Task:
    """Slice and worker of a task; `coordinator`: address of the first host."""

    slice_id: int
    slices: int
    worker: int
    hosts: int
    coordinator: str


def read(environment: Mapping[str, str]) -> tuple[Task | None, list[Problem]]:
    """Return the task, or None and all that is wrong."""
    problems: list[Problem] = []

    def wrong(name: str, rule: str, fix: str = _FIX) -> None:
        problems.append(Problem(f"${name}", environment.get(name) or "(not set)", rule, fix))

    listed = environment.get("SLURM_STEP_NODELIST", "")
    nodes = expand(listed)
    if not nodes or not all(map(_HOST.fullmatch, nodes)):
        wrong("SLURM_STEP_NODELIST", "must list hosts of slices, NAME-SLICE-wWORKER")
        return None, problems
    slices: dict[str, list[str]] = {}
    for node in nodes:
        slices.setdefault(_slice(node), []).append(node)
    sizes = {name: len(members) for name, members in slices.items()}
    hosts = next(iter(sizes.values()))
    if set(sizes.values()) != {hosts}:
        shown = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        wrong("SLURM_STEP_NODELIST", f"must have as many hosts of each slice, not {shown}")
    # What the boot of this host left: the number of hosts of its slice.
    whole = environment.get("WORKER_COUNT", str(hosts))
    if whole != str(hosts):
        fix = "in a batch script: srun --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 …"
        wrong("SLURM_STEP_NODELIST", f"must have all {whole} hosts of a slice, not {hosts}", fix)
    if environment.get("SLURM_NTASKS") != str(len(nodes)):
        wrong("SLURM_NTASKS", f"must be {len(nodes)}, one task on each host")
    number, own = environment.get(TASK, ""), environment.get("SLURMD_NODENAME", "")
    at = int(number) if number.isdecimal() else len(nodes)
    ordered = [node for members in slices.values() for node in members]
    if at >= len(nodes) or ordered[at] != own:
        wrong(TASK, f"must be the number of this host, {own or 'unknown'}, among {listed}")
    elif (switch := _switch(environment)) != _slice(own):
        fix = "topology.conf has a switch for each slice: tpu up ENV slurm"
        wrong("SLURM_TOPOLOGY_ADDR", f"must have the switch {_slice(own)}, not {switch or 'none'}", fix)
    coordinator = addresses(environment.get("SLURM_NODE_ALIASES", "")).get(ordered[0], "")
    if not coordinator:
        fix = "the nodes are of State=CLOUD, with cloud_reg_addrs: tpu up ENV slurm"
        wrong("SLURM_NODE_ALIASES", f"must have the address of {ordered[0]}", fix)
    if problems:
        return None, problems
    return Task(at // hosts, len(slices), at % hosts, hosts, coordinator), problems


def expand(text: str) -> list[str]:
    """Return the names in a list of Slurm's: "a-[0-1]-w[0,2]" is four; none if it isn't one."""
    try:
        return [name for part in _OUTSIDE.split(text) for name in _expanded(part)] if text else []
    except ValueError:
        return []


def _expanded(part: str) -> Iterator[str]:
    pieces = _BRACKET.split(part)
    ranges = [[number for text in piece.split(",") for number in _numbers(text)] for piece in pieces[1::2]]
    for chosen in product(*ranges):
        yield "".join(f"{piece}{number}" for piece, number in zip(pieces[::2], (*chosen, ""), strict=True))


def _numbers(text: str) -> Iterator[str]:
    low, _, high = text.partition("-")
    width = len(low) if low.startswith("0") else 0
    return (f"{number:0{width}}" for number in range(int(low), int(high or low) + 1))


def addresses(aliases: str) -> dict[str, str]:
    """Return the addresses of nodes by name: "tpu-0-w0:[10.0.0.2]:t1v-0"."""
    return {match[1]: match[2] for match in _ALIAS.finditer(aliases)}


def _slice(node: str) -> str:
    match = _HOST.fullmatch(node)
    return match["slice"] if match else ""


def _switch(environment: Mapping[str, str]) -> str:
    """Return the switch above this host."""
    path = environment.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    return path[-2] if len(path) > 1 else ""
