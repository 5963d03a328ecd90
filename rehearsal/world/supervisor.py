"""Supervisor of a world: starts it, and cleans up after it however it ends.

python -m rehearsal.world.supervisor DIR [--ephemeral]

An ephemeral world lives no longer than the other end of standard input: when the command that owns it
dies, by SIGKILL too, the pipe closes and the supervisor ends the world and removes its folder. Should the
supervisor itself be killed, the kernel kills the world's process 1 with it (parent-death signals).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from rehearsal.world.layout import Layout, State, started
from rehearsal.world.sweep import erase, sweep

log = logging.getLogger("rehearsal.world.supervisor")
_STOP_TIMEOUT_S = 30.0
# setpriv: the world dies with the supervisor. unshare --kill-child: process 1 dies with unshare.
_NAMESPACES = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "--",
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--net",
    "--uts",
    "--ipc",
    "--pid",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
]


def child_of(pid: int) -> int:
    """Return the only child of a process that has one."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except FileNotFoundError as gone:
        raise ProcessLookupError(f"process {pid} is gone") from gone


def tend(layout: Layout, environment: dict[str, str], ephemeral: bool) -> int:
    """Run the world to its end; return 0 if it came up."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda signum, frame: None)
    unshare = subprocess.Popen(
        [*_NAMESPACES, sys.executable, "-m", "rehearsal.world.init", str(layout.root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert unshare.stdout is not None
    watched = [wake, unshare.stdout.fileno(), *([sys.stdin.fileno()] if ephemeral else [])]
    ready = False
    while unshare.poll() is None:
        readable, _, _ = select.select(watched, [], [])
        if unshare.stdout.fileno() in readable:
            line = unshare.stdout.readline().decode().strip()
            ready = line == "ready"
            if ready:
                init = child_of(unshare.pid)
                State(os.getpid(), started(os.getpid()) or 0, init, started(init) or 0, environment).save(
                    layout.state
                )
            print(line or "failed: the world's first process ended", flush=True)
            log.info("world %s: %s", layout.root, line or "failed")
            watched.remove(unshare.stdout.fileno())
        if ephemeral and sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 1):
            break
        if wake in readable and set(os.read(wake, 64)) - {signal.SIGCHLD}:
            break
    _end(unshare)
    layout.state.unlink(missing_ok=True)
    for leftover in sweep(layout):
        log.warning("left behind: %s", leftover)
    if ephemeral:
        erase(layout.root)
    return 0 if ready else 1


def _end(unshare: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to process 1 until it ends, SIGKILL after the time limit.

    The signal is repeated: process 1 may not exist yet, or not handle it yet.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while unshare.poll() is None:
        number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        with contextlib.suppress(IndexError, ProcessLookupError):
            os.kill(child_of(unshare.pid), number)
        time.sleep(0.05)


def main() -> int:
    """Parse the command line and run the world; the duration is logged."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.world.supervisor")
    parser.add_argument("dir", type=Path)
    parser.add_argument("--ephemeral", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    layout = Layout(arguments.dir)
    begun = time.monotonic()
    status = tend(layout, dict(os.environ), arguments.ephemeral)
    log.info("the world ended after %.0f s", time.monotonic() - begun)
    return status


if __name__ == "__main__":
    sys.exit(main())
