"""A worker's place in a job: which worker of which slice it is, and where the coordinator listens.

One function computes the variables that a program reads (workload/train/cluster.py), wherever it was started:

    workload launch -- workload train tiny.toml

finds its place in what the launcher of the job left in the environment:

    on a TPU VM   WORKER_ID, WORKER_COUNT, COORDINATOR_ADDRESS: the job's unit has set them already
    in a JobSet   JOB_SLICE, JOB_WORKER, JOB_SLICES, JOB_HOSTS, JOB_COORDINATOR (infra/jobs/jobset.py)
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workload.arguments import parser
from workload.errors import ConfigError, Problem

PORT, MEGASCALE_PORT = 8476, 8080
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:\d{1,5})?")
_JOBSET = ("JOB_SLICE", "JOB_WORKER", "JOB_SLICES", "JOB_HOSTS", "JOB_COORDINATOR")
_MOST_SLICES, _MOST_HOSTS = 1024, 64


@dataclass(frozen=True)
class Place:
    """`worker` is counted within its slice, of `hosts` workers; `coordinator` is a host name or address."""

    slice_id: int
    slices: int
    worker: int
    hosts: int
    coordinator: str
    port: int = PORT

    def variables(self) -> dict[str, str]:
        """What the worker's program reads; with several slices, what libtpu reads, too.

        The MEGASCALE variables are those that GKE sets
        (cloud.google.com/tpu/docs/multislice-introduction).
        """
        found = {
            "WORKER_ID": self.slice_id * self.hosts + self.worker,
            "WORKER_COUNT": self.slices * self.hosts,
            "COORDINATOR_ADDRESS": f"{self.coordinator}:{self.port}",
        }
        if self.slices > 1:
            found |= {
                "SLICE_ID": self.slice_id,
                "SLICE_COUNT": self.slices,
                "MEGASCALE_COORDINATOR_ADDRESS": f"{self.coordinator}:{MEGASCALE_PORT}",
                "MEGASCALE_PORT": MEGASCALE_PORT,
                "MEGASCALE_NUM_SLICES": self.slices,
                "MEGASCALE_SLICE_ID": self.slice_id,
            }
        return {name: str(value) for name, value in found.items()}


def of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a worker; none where they are set already, or the process is alone.

    Raises:
        ConfigError: a launcher's variables are incomplete or make no sense.
    """
    if "WORKER_COUNT" in environment or not any(name in environment for name in _JOBSET):
        return {}
    return _of_jobset(environment).variables()


def _of_jobset(environment: Mapping[str, str]) -> Place:
    problems: list[Problem] = []

    def number(name: str, low: int, high: int) -> int:
        text = environment.get(name, "")
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        shown = repr(text) if text else "(not set)"
        fix = "submit the job with `tpu job submit`, or write its manifest anew"
        problems.append(Problem(f"${name}", shown, f"must be a whole number from {low} to {high}", fix))
        return low

    slices, hosts = number("JOB_SLICES", 1, _MOST_SLICES), number("JOB_HOSTS", 1, _MOST_HOSTS)
    place = Place(
        number("JOB_SLICE", 0, slices - 1), slices, number("JOB_WORKER", 0, hosts - 1), hosts,
        environment.get("JOB_COORDINATOR", ""),
    )  # fmt: skip
    if not _ADDRESS.fullmatch(place.coordinator) or ":" in place.coordinator:
        fix = "the annotation jobset.sigs.k8s.io/coordinator, which `spec.coordinator` of the JobSet sets"
        problems.append(Problem("$JOB_COORDINATOR", repr(place.coordinator), "must be a host name", fix))
    if problems:
        raise ConfigError("environment", problems)
    return place


def main(arguments: Sequence[str]) -> int:
    """`workload launch -- PROGRAM …`: becomes the program, with its place in the environment."""
    examples = "  workload launch -- workload train tiny.toml\n  workload launch -- python train.py"
    about = "Start a program of a job with its place in it: worker, slice, coordinator."
    options = parser("workload launch", about, examples)
    options.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM …")
    line = options.parse_args(list(arguments)).program
    line = line[1:] if line[:1] == ["--"] else line
    if not line or not shutil.which(line[0]):
        problem = Problem(
            "program", line[0] if line else "(nothing)", "must be on PATH, or a path", examples.strip()
        )
        raise ConfigError("workload launch", [problem])
    found = of(os.environ)
    for name, value in found.items():
        print(f"{name}={value}", flush=True)
    os.execvpe(line[0], line, {**os.environ, **found})
