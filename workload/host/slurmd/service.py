"""slurmd as a child: started once all it needs is there, again where it is lost, stopped after its jobs."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from workload.host.bucket import Bucket
from workload.host.errors import HostError
from workload.host.metadata import HostDescription
from workload.host.slurmd import install, mounts
from workload.host.slurmd.arguments import Arguments, parse
from workload.host.slurmd.jobs import end_jobs, is_lost, of_steps, requeue_earlier

_LOG = logging.getLogger(__name__)
COMMAND = "slurmd"
PORT = 6817
_PATIENCE_S = 300.0
_PAUSE_S = 2.0
_STOP_S = 2.0
_LOOK_S = 30.0  # longer than a registration takes
# In memory: gone after a reboot.
_STARTED = Path("/run/tpu/slurm-startup-done")
# What slurmd prints, and what it means once the controller's port is open.
_REASONS = {
    "failed to fetch remote configs": (
        "slurmctld refuses this host: munge's key differs from the controller's, or their clocks do. The "
        "next start reads the key again; on the controller: sudo systemctl restart google-startup-scripts"
    ),
    "lookup failure for node": "slurm.conf has no such node: tpu up ENV slurm",
}


def run(words: Sequence[str], stopping: threading.Event) -> None:
    """Join the cluster and stay in it until `stopping`. Raises HostError."""
    arguments = parse(words)
    host = HostDescription.from_metadata()  # without a number no host joins as worker 0
    name = f"{arguments.prefix}-w{host.worker}"
    _prepare(arguments, host, stopping)
    if not stopping.is_set():
        _serve(arguments.controller, name, stopping)


def _prepare(arguments: Arguments, host: HostDescription, stopping: threading.Event) -> None:
    began = time.monotonic()
    bucket = Bucket(host.bucket)
    if install.packages(bucket, arguments.bundle):
        install.command("ldconfig", doing="listing libraries")
        install.command("systemctl", "daemon-reload", doing="reading units")
        _LOG.info("Slurm's packages are unpacked after %.1f s", time.monotonic() - began)
    install.users()
    install.epilog()
    _retried(lambda: install.munge(install.key(arguments.secret)), stopping)
    for desired in arguments.mounts:
        _retried(partial(mounts.mount, desired), stopping)
    if arguments.startup and not _STARTED.exists() and not stopping.is_set():
        _startup(*arguments.startup)
        _STARTED.touch()
    _retried(lambda: _reach(arguments.controller), stopping)
    _LOG.info("the host is prepared after %.1f s", time.monotonic() - began)


def _retried(step: Callable[[], None], stopping: threading.Event, patience_s: float = _PATIENCE_S) -> None:
    """Repeat a step while it fails: the controller may still boot. Raises its HostError in the end."""
    give_up, before = time.monotonic() + patience_s, ""
    while not stopping.is_set():
        try:
            step()
        except HostError as error:
            if time.monotonic() > give_up:
                raise
            if str(error) != before:
                _LOG.warning("will try again: %s", error)
                before = str(error)
            stopping.wait(_PAUSE_S)
        else:
            return


def _reach(controller: str) -> None:
    try:
        socket.create_connection((controller, PORT), timeout=5).close()
    except OSError as error:
        why = error.strerror or error
        raise HostError(
            f"slurmctld isn't reachable at {controller}:{PORT} ({why}): tpu logs ENV slurm"
        ) from None


def _startup(bucket: str, name: str) -> None:
    script = Bucket(bucket).read(name)
    if script is None:
        raise HostError(f"there is no gs://{bucket}/{name}: the nodeset's startupScript names it")
    done = subprocess.run(["bash", "-s"], input=script, check=False)
    if done.returncode != 0:
        raise HostError(
            f"gs://{bucket}/{name} failed with exit status {done.returncode}: see the lines above"
        )


def _serve(controller: str, name: str, stopping: threading.Event, look_s: float = _LOOK_S) -> None:
    """Run slurmd until it ends, a HostError, or this host stops; again once slurmctld has lost the host."""
    command = ["slurmd", "-D", "--conf-server", f"{controller}:{PORT}", "-N", name]
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    booted: list[str] = []
    while not stopping.is_set():
        errors: list[str] = []
        again = threading.Event()
        with subprocess.Popen(
            [*command, *booted], stderr=subprocess.PIPE, text=True, errors="replace", env=environment
        ) as child:
            threading.Thread(target=_attend, args=(child, name, stopping, again, look_s), daemon=True).start()
            assert child.stderr is not None
            for line in child.stderr:
                sys.stderr.write(line)
                sys.stderr.flush()
                if "error" in line or "fatal" in line:
                    errors.append(line.strip())
        if not stopping.is_set() and not again.is_set():
            printed = "\n".join(errors)
            known = (reason for sign, reason in _REASONS.items() if sign in printed)
            reason = next(known, errors[-1] if errors else "without a word")
            raise HostError(f"slurmd of {name} ended with exit status {child.returncode}: {reason}")
        # A boot for slurmctld, which ignores a host whose boot isn't later than its request for it.
        booted = ["-b"]


def _attend(
    child: subprocess.Popen[str], name: str, stopping: threading.Event, again: threading.Event, look_s: float
) -> None:
    """End slurmd after its jobs when this host stops; or set `again` and end it: slurmctld lost the host."""
    while not stopping.wait(look_s):
        if child.poll() is not None:
            return
        if of_steps():
            continue
        if earlier := requeue_earlier(name):
            _LOG.warning("jobs %s ran here before the last boot, and were queued again", ", ".join(earlier))
        elif is_lost(name):
            _LOG.warning("slurmctld waits for %s, which is here: slurmd starts again", name)
            again.set()
            child.terminate()
            return
    end_jobs(name)
    child.terminate()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
