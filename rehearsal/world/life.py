"""Birth, entry and end of a world, as the commands use them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rehearsal.errors import WorldError
from rehearsal.world.layout import Layout, State, started
from rehearsal.world.supervisor import child_of
from rehearsal.world.sweep import cgroup_mounts, erase, sweep

_TOOLS = ("unshare", "nsenter", "setpriv", "ip", "nft", "mount", "ssh-keygen", "systemd-nspawn", "mkfs.ext4")
_END_TIMEOUT_S = 60.0
_INTERRUPTED_TIMEOUT_S = 30.0
# A socket's path has room for 107 bytes (unix(7)); ours is the folder and `/control.sock`.
_LONGEST_ROOT = 90


def require_machine() -> None:
    """Raise WorldError unless this user on this machine can make a world."""
    require_root()
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise WorldError(f"not installed: {', '.join(missing)}", "make doctor")
    groups = list(cgroup_mounts())
    refusing = [str(mount) for mount in groups if not os.access(mount, os.W_OK)]
    if refusing or not groups:
        what = f"can't be made in {', '.join(refusing)}" if refusing else "are not mounted"
        fix = "run outside of a container, or in one with a writable /sys/fs/cgroup"
        raise WorldError(f"control groups {what}, and machines need them", fix)


def require_root() -> None:
    """Raise WorldError for any user but root."""
    if os.geteuid() != 0:
        raise WorldError(
            "a world needs root: it makes namespaces, loop devices and mounts", f"sudo {_own_command()}"
        )


def require_free(layout: Layout) -> None:
    """Claim the folder for a new world; remove the remains of a dead one.

    WorldError where a world is up in it, another command is at work in it, or it holds something else.
    """
    if len(str(layout.root)) > _LONGEST_ROOT:
        raise WorldError(
            f"{layout.root} is too long for the path of a socket",
            f"--dir with at most {_LONGEST_ROOT} characters",
        )
    state = State.load(layout.state)
    if state and state.alive:
        raise WorldError(
            f"a world is up in {layout.root} already",
            f"tpu rehearsal down --dir {layout.root}, or shell to enter it",
        )
    layout.claim()
    if any(layout.root.iterdir()):
        remove(layout)
        layout.claim()


def left_behind(worlds: Path) -> Iterator[Layout]:
    """Claim and yield the worlds in a folder whose commands were killed, and their supervisors with them.

    A living world holds its folder's lock, or its first process has the pid and start time of its state.
    """
    for root in sorted(worlds.iterdir()):
        layout = Layout(root)
        with contextlib.suppress(WorldError, OSError):
            state = State.load(layout.state)
            if layout.marker.exists() and not (state and state.alive):
                layout.claim()
                yield layout


def launch(layout: Layout, environment: Mapping[str, str], *, ephemeral: bool) -> State:
    """Start the world that lies ready in its folder; returns once the cloud answers.

    An ephemeral world ends, and its folder goes, when the calling process dies, whatever kills it.
    """
    command = [sys.executable, "-m", "rehearsal.world.supervisor", str(layout.root)]
    with (layout.root / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [*command, "--ephemeral"] if ephemeral else command,
            stdin=subprocess.PIPE if ephemeral else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environment),
            cwd=Path(__file__).resolve().parents[2],
            start_new_session=True,
            pass_fds=[layout.claim()],
        )
    _SUPERVISORS[layout.root] = supervisor
    assert supervisor.stdout is not None
    output = supervisor.stdout.readline().decode().strip()
    state = State.load(layout.state)
    if output != "ready" or state is None:
        reason = (
            output.removeprefix("failed: ") or f"the supervisor ended; see {layout.root / 'supervisor.log'}"
        )
        raise WorldError(f"the world didn't come up: {reason}{_end_of(layout.cloud_log)}")
    return state


# By folder. Their pipes stay open as long as this process lives.
_SUPERVISORS: dict[Path, subprocess.Popen[bytes]] = {}


def end(layout: Layout) -> None:
    """End the world and remove its folder; nothing to do is not an error."""
    supervisor = _SUPERVISORS.pop(layout.root, None)
    if supervisor:  # this process's, and maybe interrupted before there was a state file
        supervisor.terminate()
        supervisor.wait()
    try:
        state = State.load(layout.state)
        ending = state is not None
    except WorldError:  # unreadable: the sweep finds the world by its folder
        state, ending = None, True
        sweep(layout)
    deadline = time.monotonic() + _END_TIMEOUT_S
    if state:
        for pid, since, number in (
            (state.supervisor_pid, state.supervisor_started, signal.SIGTERM),
            (state.init_pid, state.init_started, signal.SIGKILL),
        ):
            while started(pid) == since:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                if time.monotonic() > deadline:
                    raise WorldError(f"process {pid} of the world in {layout.root} doesn't end")
                time.sleep(0.1)
    while True:
        try:
            layout.claim()
            break
        except WorldError:  # the world's owners end after it, and release the folder then
            if not ending or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    remove(layout)


def remove(layout: Layout) -> None:
    """Remove the remains of a dead world; WorldError if that fails, or if the folder is no world's."""
    if layout.root.exists() and any(layout.root.iterdir()) and not layout.marker.exists():
        raise WorldError(f"{layout.root} is not empty and not a world", "name another folder with --dir")
    left = sweep(layout)
    if left:
        raise WorldError(f"can't be cleaned up: {'; '.join(left)}")
    erase(layout.root)
    layout.release()


def require_up(layout: Layout) -> State:
    """Return the state of the running world in this folder."""
    state = State.load(layout.state)
    if state is None or not state.alive:
        raise WorldError(f"no world is up in {layout.root}", "tpu rehearsal up")
    return state


def entry(layout: Layout, state: State, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` inside, in the program's copy, with `state.environment`."""
    namespaces = ["--mount", "--net", "--uts", "--ipc", "--pid"]
    inside = ["env", f"--chdir={layout.program}", *command]
    return ["nsenter", "--target", str(state.init_pid), *namespaces, "--", *inside]


def run_inside(layout: Layout, state: State, command: Sequence[str], *, owns_interrupts: bool) -> int:
    """Run in the foreground, with this process's terminal; the exit status.

    Where the command owns interrupts, as a shell does, Ctrl+C has no effect here. Otherwise it is sent on to
    the command, which has `_INTERRUPTED_TIMEOUT_S` to end.
    """
    line = entry(layout, state, command)
    if owns_interrupts:
        child = subprocess.Popen(line, env=state.environment)
        with _interrupts_ignored():
            status = child.wait()
    else:
        # Ctrl+C would kill nsenter at once, with nothing left to wait for the command.
        child = subprocess.Popen(["env", "--ignore-signal=INT", *line], env=state.environment)
        try:
            status = child.wait()
        except KeyboardInterrupt:
            _interrupt(child)
            raise
    return 128 - status if status < 0 else status


def _interrupt(nsenter: subprocess.Popen[bytes]) -> None:
    """Wait for the command inside to end in its own way, at most until a second Ctrl+C.

    The signal is repeated, since the command may not have its handler yet; it reacts to the first alone.
    """
    deadline = time.monotonic() + _INTERRUPTED_TIMEOUT_S
    while nsenter.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(IndexError, ProcessLookupError):
            os.kill(child_of(nsenter.pid), signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            nsenter.wait(0.5)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_of(log: Path, lines: int = 12) -> str:
    try:
        text = log.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""
    return "\n" + "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) if text else ""


def _own_command() -> str:
    return " ".join(["tpu", *sys.argv[1:]])
