"""Process 1 of a world: sets the stage, starts the cloud, reaps orphans; when it ends, the kernel ends all.

python -m rehearsal.world.init DIR   (run by the supervisor, inside fresh namespaces)

It prints one line, `ready` or `failed: why`, once the cloud's control socket answers or can't.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from rehearsal.authority import SYSTEM_BUNDLE
from rehearsal.world.layout import Layout
from rehearsal.world.sweep import join_cgroup

_CLOUD_START_TIMEOUT_S = 300.0
_CLOUD_STOP_TIMEOUT_S = 5.0


class _Stop(Exception):  # noqa: N818 - a request, not an error
    """SIGTERM or SIGINT arrived."""


def set_stage(layout: Layout) -> None:
    """Mounts, loopback and host name, all of them private to this world."""
    # Tools keep locks and sockets in /run; a private one takes them along when the world ends.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "rehearsal", "/run"], check=True)
    Path("/run/lock").mkdir()
    binds = {
        layout.root / "hosts": Path("/etc/hosts"),
        layout.root / "resolv.conf": Path("/etc/resolv.conf"),
        layout.tls / "bundle.pem": SYSTEM_BUNDLE,
        # ssh takes a user's home from the password file and not from HOME, so the system's file is replaced.
        layout.home / "ssh" / "config": Path("/etc/ssh/ssh_config"),
    }
    for source, target in binds.items():
        place = target.resolve()
        if not place.exists():  # a resolv.conf that points into the /run just covered
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        subprocess.run(["mount", "--bind", source, place], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    socket.sethostname("rehearsal")


def start(module: str, config: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a process of the cloud with its configuration, and its output in a log."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", module, "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).resolve().parents[2],
        )


def wait_for_cloud(layout: Layout, cloud: subprocess.Popen[bytes]) -> str:
    """Return `ready`, or `failed: ` with the reason."""
    end = time.monotonic() + _CLOUD_START_TIMEOUT_S
    while time.monotonic() < end:
        if cloud.poll() is not None:
            return f"failed: the cloud process ended with status {cloud.returncode}; see {layout.cloud_log}"
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(layout.control))
                return "ready"
            except OSError:
                time.sleep(0.05)
    return f"failed: no answer on {layout.control} within {_CLOUD_START_TIMEOUT_S:.0f} s"


def reap_until_end(cloud: subprocess.Popen[bytes]) -> int:
    """Reap the orphans of process 1 until the cloud ends; return its exit status."""
    while True:
        pid, status = os.wait()
        if pid == cloud.pid:
            cloud.returncode = os.waitstatus_to_exitcode(status)
            return cloud.returncode


def main() -> int:
    """Run until SIGTERM or the cloud's end."""
    layout = Layout(Path(sys.argv[1]))

    def stop(signum: int, frame: FrameType | None) -> None:
        raise _Stop

    try:
        join_cgroup(layout)
        set_stage(layout)
    except (OSError, subprocess.CalledProcessError) as refused:
        print(f"failed: this machine doesn't let a world be made: {refused}", flush=True)
        return 1
    cloud = start("rehearsal.cloud", layout.cloud_config, layout.cloud_log)
    clusters = None
    if layout.kubernetes_config.exists():  # it waits for the cloud itself
        clusters = start("rehearsal.kubernetes", layout.kubernetes_config, layout.kubernetes_log)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the command in front, which ends us in order
    try:
        outcome = wait_for_cloud(layout, cloud)
        print(outcome, flush=True)
        if outcome != "ready":
            return 1
        return reap_until_end(cloud)
    except _Stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if clusters:
            clusters.kill()  # what it runs dies with it, and the namespaces with us
        cloud.terminate()
        try:
            cloud.wait(_CLOUD_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            cloud.kill()
        return 0


if __name__ == "__main__":
    sys.exit(main())
