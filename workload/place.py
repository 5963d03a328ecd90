"""Place of a worker in a job: its slice, its id and the coordinator's address.

`Place.variables` computes the variables that a program reads (workload/train/cluster.py), for each launcher:

    TPU VM    the boot's stage `environment`: `workload host place`, from the host's metadata
    slices    of a job on TPU VMs: its barrier (workload/host/places.py), once worker 0's address is known
    JobSet    `workload launch -- PROGRAM`, from JOB_SLICE, JOB_WORKER, JOB_SLICES, JOB_HOSTS, JOB_COORDINATOR
              (infra/layers/queue/jobs/jobset.py)
    Slurm     `srun … workload launch -- PROGRAM`, from the variables of srun (workload/slurm.py)

`workload launch -- workload train tiny.toml` starts a program anywhere; it keeps variables that are set.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workload import slurm
from workload.arguments import program
from workload.errors import ConfigError, Problem

PORT, MEGASCALE_PORT = 8476, 8080  # the network layer's firewall opens the first
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_JOBSET = ("JOB_SLICE", "JOB_WORKER", "JOB_SLICES", "JOB_HOSTS", "JOB_COORDINATOR")
_MOST_SLICES, _MOST_HOSTS = 1024, 64


@dataclass(frozen=True)
class Place:
    """Worker `worker` of `hosts` in slice `slice_id`; `coordinator` is a host name or address."""

    slice_id: int
    slices: int
    worker: int
    hosts: int
    coordinator: str
    port: int = PORT

    @property
    def number(self) -> int:
        """Id of the worker among those of all slices; workers of the first slice come first."""
        return self.slice_id * self.hosts + self.worker

    @property
    def workers(self) -> int:
        """Number of workers in all slices."""
        return self.slices * self.hosts

    def variables(self) -> dict[str, str]:
        """Return the variables of the worker's program; with several slices also those of libtpu.

        JAX reads the MEGASCALE variables too (jax/_src/clusters/cloud_tpu_cluster.py).
        """
        variables = {
            "WORKER_ID": self.number,
            "WORKER_COUNT": self.workers,
            "COORDINATOR_ADDRESS": f"{self.coordinator}:{self.port}",
        }
        if self.slices > 1:
            variables |= {
                "SLICE_ID": self.slice_id,
                "SLICE_COUNT": self.slices,
                "MEGASCALE_COORDINATOR_ADDRESS": f"{self.coordinator}:{MEGASCALE_PORT}",
                "MEGASCALE_PORT": MEGASCALE_PORT,
                "MEGASCALE_NUM_SLICES": self.slices,
                "MEGASCALE_SLICE_ID": self.slice_id,
            }
        return {name: str(value) for name, value in variables.items()}


def of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker; none if they are set already or the process is alone.

    A task of srun has those of its job, whatever its host's boot left for the slice alone.

    Raises:
        ConfigError: a launcher's variables are incomplete or invalid.
    """
    if slurm.TASK in environment:
        return _of_slurm(environment).variables()
    if "WORKER_COUNT" in environment or not any(name in environment for name in _JOBSET):
        return {}
    fix = "submit the job with `tpu job submit`, or generate its manifest again"
    read = _Reader(environment, fix)
    slices, hosts = read.number("JOB_SLICES", 1, _MOST_SLICES), read.number("JOB_HOSTS", 1, _MOST_HOSTS)
    slice_id, worker = read.number("JOB_SLICE", 0, slices - 1), read.number("JOB_WORKER", 0, hosts - 1)
    fix = "the annotation jobset.sigs.k8s.io/coordinator, which `spec.coordinator` of the JobSet sets"
    return read.checked(Place(slice_id, slices, worker, hosts, read.name("JOB_COORDINATOR", fix))).variables()


def of_host(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a TPU VM's host, from WORKER_ID, WORKER_COUNT and COORDINATOR of its boot.

    Raises:
        ConfigError: these are incomplete or invalid.
    """
    read = _Reader(environment, "boot the host again: sudo systemctl restart google-startup-scripts")
    hosts = read.number("WORKER_COUNT", 1, _MOST_HOSTS)
    place = Place(0, 1, read.number("WORKER_ID", 0, hosts - 1), hosts, read.name("COORDINATOR"))
    return read.checked(place).variables()


def _of_slurm(environment: Mapping[str, str]) -> Place:
    task, problems = slurm.read(environment)
    if task is None:
        raise ConfigError("environment of srun", problems)
    return Place(task.slice_id, task.slices, task.worker, task.hosts, task.coordinator)


class _Reader:
    """Reader of variables that collects their problems."""

    def __init__(self, environment: Mapping[str, str], fix: str):
        self._environment, self._fix = environment, fix
        self._problems: list[Problem] = []

    def number(self, name: str, low: int, high: int) -> int:
        text = self._environment.get(name, "")
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        rule = f"must be a whole number from {low} to {high}"
        self._problems.append(Problem(f"${name}", repr(text) if text else "(not set)", rule, self._fix))
        return low

    def name(self, name: str, fix: str = "") -> str:
        text = self._environment.get(name, "")
        if not _ADDRESS.fullmatch(text):
            self._problems.append(Problem(f"${name}", repr(text), "must be a host name", fix or self._fix))
        return text

    def checked(self, place: Place) -> Place:
        if self._problems:
            raise ConfigError("environment", self._problems)
        return place


def main(arguments: Sequence[str]) -> int:
    """Run `workload launch -- PROGRAM …`: exec the program with its place in the environment."""
    examples = "  workload launch -- workload train tiny.toml\n  workload launch -- python train.py"
    about = "Start a program with its place in a job: worker, slice, coordinator."
    line = program("workload launch", about, examples, arguments)
    place = of(os.environ)
    for name, value in place.items():
        print(f"{name}={value}", flush=True)
    variables = {**os.environ, **place}
    _make_folder(variables.get("CHECKPOINT_DIR"))
    if os.getpid() != 1:
        os.execvpe(line[0], line, variables)
    return _below(line, variables)


def _make_folder(path: str | None) -> None:
    """Make the folder of a job in the mounted bucket. Raises ConfigError."""
    try:
        if path:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        rule = f"must be a folder, and can't be made: {error.strerror}"
        problem = Problem(
            "$CHECKPOINT_DIR", str(path), rule, "mount the bucket there, for an account that may write"
        )
        raise ConfigError("environment", [problem]) from error


def _below(line: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program as a child, forward signals to it, and return its exit status.

    As process 1 of a container it would ignore SIGTERM without a handler (pid_namespaces(7)).
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    child = subprocess.Popen(line, env=variables)
    for missed in early:
        child.send_signal(missed)
    status = child.wait()
    return 128 - status if status < 0 else status
