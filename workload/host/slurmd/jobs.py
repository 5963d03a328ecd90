"""End of a host's jobs before the host goes: queued again by slurmctld, which stops them everywhere."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

_LOG = logging.getLogger(__name__)
_STEPD = "slurmstepd"
_LOST = re.compile(r" State=\S*\+(?:POWERING_UP|NOT_RESPONDING)\b")
_ANSWER_S = 5.0
_CLOCKS_S = 1.0  # by which two machines' clocks may differ
SAVE_S = 24.0
"""A preemption gives 30 s, of which the unit leaves 28 (workload/host/unit.py)."""


def end_jobs(name: str, patience_s: float = SAVE_S, proc: Path = Path("/proc")) -> None:
    """Queue this node's jobs again, which sends them SIGTERM, and wait until they saved and ended.

    Where slurmctld doesn't answer, or a job can't be queued again, the signal is sent here.
    """
    give_up = time.monotonic() + patience_s
    if not of_steps(proc):
        return
    queued = _requeue(name)
    if not queued:
        for pid in of_steps(proc):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    _LOG.info("this host goes: jobs %s were told to save", ", ".join(queued) or "of the host")
    while of_steps(proc) and time.monotonic() < give_up:
        time.sleep(0.2)


def of_steps(proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of jobs: those below slurmstepd."""
    parents, names = {}, {}
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            line = (folder / "stat").read_text()
            pid = int(folder.name)
            names[pid] = line[line.index("(") + 1 : line.rindex(")")]
            parents[pid] = int(line[line.rindex(")") + 2 :].split()[1])
    return [pid for pid in parents if names[pid] != _STEPD and _below(pid, parents, names)]


def _below(pid: int, parents: dict[int, int], names: dict[int, str]) -> bool:
    while (pid := parents.get(pid, 0)) > 0:
        if names.get(pid) == _STEPD:
            return True
    return False


def requeue_earlier(name: str) -> list[str]:
    """Queue this node's jobs again that began before this machine booted; return them.

    A slurmctld that lost its newest state when it was killed takes them for running.
    """
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        return _queued_again(job for job, start_s in _running(name) if start_s < boot_s - _CLOCKS_S)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _LOG.warning("jobs of an earlier boot can't be queued again: %s", error)
        return []


def _requeue(name: str) -> list[str]:
    """Return the jobs that slurmctld queued again."""
    try:
        return _queued_again(job for job, _ in _running(name))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _LOG.warning("jobs can't be queued again, and are stopped here: %s", error)
        return []


def _running(name: str) -> list[tuple[str, float]]:
    """Return a node's jobs, and the times of their starts."""
    line = ("squeue", "--noheader", "--states=running", "--format=%i %S", f"--nodelist={name}")
    jobs = [row.split() for row in output(*line, SLURM_TIME_FORMAT="%s").splitlines()]
    return [(job, float(start)) for job, start in jobs]


def _queued_again(jobs: Iterable[str]) -> list[str]:
    # Slurm takes the whole of a heterogeneous job alone: 12 for the component 12+1.
    wholes = [*dict.fromkeys(job.partition("+")[0] for job in jobs)]
    for job in wholes:
        output("scontrol", "requeue", job)
    return wholes


def output(*words: str, **environment: str) -> str:
    """Return the output of a program of Slurm. Raises OSError, or SubprocessError if it fails or is late."""
    variables = {**os.environ, **environment}
    done = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_S, check=True, env=variables)
    return done.stdout


def is_lost(name: str) -> bool:
    """Return whether slurmctld answers, and waits for this host, whose slurmd runs.

    A crash after the host had come and before that was saved loses it. Only the start of slurmd registers a
    host of the cloud: without another one the slice stays, unused and billed, until ResumeTimeout.
    """
    try:
        shown = output("scontrol", "show", "node", "--oneliner", name)
    except (OSError, subprocess.SubprocessError):
        return False  # the next look
    return _LOST.search(shown) is not None
