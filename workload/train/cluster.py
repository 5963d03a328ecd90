"""Cluster of a run's workers: rendezvous, agreement, shutdown.

The environment assigns the ids (`/etc/tpu/environment` on a host):

    COORDINATOR_ADDRESS=10.0.0.2:8476  WORKER_COUNT=4  WORKER_ID=0  [SLICE_COUNT=2]

Without WORKER_COUNT, or with 1, the process is alone. A worker without an id is refused: two workers
with the same id would silently corrupt a run.
"""
# mypy: allow-untyped-calls

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from workload.errors import ClusterError, ConfigError, Problem, WorkloadError
from workload.train.config import ClusterConfig
from workload.train.sharding import by_slice


@dataclass(frozen=True)
class Membership:
    """Position of this process among the workers."""

    worker: int = 0
    workers: int = 1
    coordinator: str = ""  # host:port of worker 0; empty when alone
    slices: int = 1  # equally large; workers of the first slice have the first ids

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Membership":
        """Read WORKER_COUNT, WORKER_ID, COORDINATOR_ADDRESS and SLICE_COUNT.

        Raises:
            ConfigError: a variable is missing or invalid.
        """
        problems = []

        def number(name: str, low: int, high: int) -> int:
            text = environment.get(name, "")
            if text.isdecimal() and low <= int(text) <= high:
                return int(text)
            rule = f"must be a whole number from {low} to {high}"
            fix = "start the job by its unit, which reads /etc/tpu/environment, or set the variable"
            problems.append(Problem(f"${name}", repr(text) if text else "(not set)", rule, fix))
            return low

        if environment.get("WORKER_COUNT", "1") == "1":
            return cls()
        workers = number("WORKER_COUNT", 1, 4096)
        worker = number("WORKER_ID", 0, max(0, workers - 1))
        coordinator = environment.get("COORDINATOR_ADDRESS", "")
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdecimal():
            fix = "the address of worker 0 and JAX's port, e.g. 10.0.0.2:8476"
            problems.append(Problem("$COORDINATOR_ADDRESS", repr(coordinator), "must read host:port", fix))
        slices = number("SLICE_COUNT", 1, workers) if "SLICE_COUNT" in environment else 1
        if workers % slices:
            fix = "as many hosts in each slice"
            problems.append(
                Problem("$SLICE_COUNT", str(slices), f"must divide $WORKER_COUNT, {workers}", fix)
            )
        if problems:
            raise ConfigError("environment", problems)
        return cls(worker, workers, coordinator, slices)


class Cluster:
    """Workers of a run and the collectives between their processes."""

    def __init__(self, membership: Membership):
        self.membership = membership
        self.devices = jax.devices()
        self.slices = by_slice(self.devices, membership.slices)

    @property
    def leader(self) -> bool:
        """True for worker 0, the only writer of the run's small objects."""
        return self.membership.worker == 0

    @classmethod
    def join(cls, membership: Membership, config: ClusterConfig) -> "Cluster":
        """Connect to the other workers through the coordinator.

        JAX aborts the process unless all workers arrive within `start_timeout_s`. Afterwards SIGTERM is a
        preemption notice, and a worker without heartbeats for `heartbeat_timeout_s` ends all the others.

        Raises:
            ClusterError: there are no chips, or JAX assigns other worker ids or slices.
        """
        if membership.workers > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            half_s = config.start_timeout_s / 2
            late = (
                f"{membership.workers} workers have not all met at {membership.coordinator}"
                f" after {half_s:g} s\n"
                "    fix: start every worker, and let the firewall pass the coordinator's port"
            )
            # Print the hint before the timeout: JAX then aborts the process without an exception.
            warning = threading.Timer(half_s, print, [late], {"file": sys.stderr, "flush": True})
            warning.daemon = True
            warning.start()
            jax.distributed.initialize(
                membership.coordinator,
                num_processes=membership.workers,
                process_id=membership.worker,
                initialization_timeout=config.start_timeout_s,
                heartbeat_timeout_seconds=config.heartbeat_timeout_s,
                shutdown_timeout_seconds=config.shutdown_timeout_s,
                cluster_detection_method="deactivate",  # ids are given; on Kubernetes JAX would warn
            )
            warning.cancel()
        try:
            cluster = cls(membership)
        except RuntimeError as error:  # JAX's, for a requested platform that is absent
            raise ClusterError(
                f"no chips: {first_line(error)}\n"
                "    fix: read libtpu's messages in the job's log; end other processes that hold the chips"
            ) from error
        if jax.process_index() != membership.worker:  # `agree` relies on process 0 being worker 0
            raise ClusterError(
                f"$WORKER_ID is {membership.worker}, but JAX's process index is {jax.process_index()}\n"
                "    fix: set $WORKER_ID and $WORKER_COUNT on every host as the slice numbers its hosts"
            )
        return cluster

    def leave(self) -> None:
        """Disconnect; all workers do so together."""
        if self.membership.workers > 1:
            jax.distributed.shutdown()

    def agree(self, query: Callable[[], Any]) -> Any:
        """Return worker 0's result of `query`, which must be JSON, on every worker.

        Raises:
            WorkloadError: on all workers, if `query` raised it.
        """
        message: dict[str, Any] = {}
        failure: WorkloadError | None = None
        if self.leader:
            try:
                message = {"answer": query()}
            except WorkloadError as error:
                if self.membership.workers == 1:
                    raise
                failure, message = error, {"error": str(error), "exit_code": error.exit_code}
        raw = np.frombuffer(json.dumps(message).encode(), np.uint8)
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(raw))))
        padded = np.zeros(length, np.uint8)
        padded[: len(raw) if self.leader else 0] = raw if self.leader else padded[:0]
        answer = json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)))
        if failure:
            raise failure
        if "error" in answer:
            refusal = WorkloadError(answer["error"])
            refusal.exit_code = answer["exit_code"]
            raise refusal
        return answer["answer"]

    def all_true(self, value: bool) -> bool:
        """Return True if `value` is true on every worker."""
        return not self.dissenters(value)

    def dissenters(self, value: bool) -> list[int]:
        """Return the ids of the workers whose `value` is false."""
        values = multihost_utils.process_allgather(np.array([value])).reshape(-1)
        return [int(worker) for worker in np.flatnonzero(~values)]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, the readable one of JAX's errors."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
