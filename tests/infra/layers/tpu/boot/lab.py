"""A host that boots: this machine's own system under systemd-nspawn, on an overlay, in a
network without a way out, where Google's names lead to a metadata server and a storage
server of ours. What this machine has of Python and of the project is hidden from it.

Namespaces belong to threads: one thread enters them and starts everything that lives
inside, so that the rest of the test process stays where it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from rehearsal.authority import issue
from rehearsal.hosts.groups import ControlGroup
from tests import limits
from tests.limits import HANG_S
from tests.served import serving

from .metadata import Metadata
from .storage import Front, with_tls

T = TypeVar("T")

_PROJECT = Path(__file__).resolve().parents[5]

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_POWER_BUTTON = signal.SIGRTMIN + 4
_HOSTS = (
    "127.0.0.1 localhost storage.googleapis.com logging.googleapis.com secretmanager.googleapis.com\n"
    "169.254.169.254 metadata.google.internal metadata\n"
)
_UNIT = """\
[Unit]
Description=Google Compute Engine Startup Scripts
[Service]
Type=oneshot
Environment=LANG=C.UTF-8
ExecStart=/bin/bash /boot-script
TimeoutStartSec=infinity
"""
# What a script waits for with sleep, between two tries, takes a tenth of the time; a job says /bin/sleep.
_SLEEP = """\
#!/bin/sh
case $1 in
  *[!0-9]*) exec /usr/bin/sleep 0.05 ;;
  *) exec /usr/bin/sleep "$(($1 / 10)).$(($1 % 10))" ;;
esac
"""
_TARGET = "[Unit]\nWants=google-startup-scripts.service\nRequires=basic.target\nAfter=basic.target\n"


def _sh(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL)


class Lab:
    """The private network and mounts, with both servers running."""

    def __init__(self, folder: Path, metadata: Metadata, front: Front) -> None:
        self.folder, self.metadata, self.front = folder, metadata, front
        apis = [f"{api}.googleapis.com" for api in ("storage", "logging", "secretmanager")]
        self.files = issue(folder, apis, [])
        self._inside = ThreadPoolExecutor(1, initializer=self._enter)
        # Its mounts, as the other threads of this process see them.
        self.view = Path(f"/proc/{os.getpid()}/task/{self.inside(threading.get_native_id)}/root")
        plain = self.inside(lambda: socket.create_server(("169.254.169.254", 80)))
        tls = self.inside(lambda: socket.create_server(("127.0.0.1", 443)))
        self._servers = contextlib.ExitStack()
        self._servers.enter_context(serving(metadata.answer, plain))
        self._servers.enter_context(serving(front.answer, with_tls(tls, self.files)))

    def inside(self, do: Callable[[], T]) -> T:
        """Run `do` in the thread that lives inside."""
        return self._inside.submit(do).result()

    def _enter(self) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS | _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        _sh("mount", "--make-rprivate", "/")
        _sh("ip", "link", "set", "lo", "up")
        _sh("ip", "address", "add", "169.254.169.254/32", "dev", "lo")

    def close(self) -> None:
        self._servers.close()
        self._inside.shutdown()


class Host:
    """A machine; its disk outlives its boots."""

    def __init__(self, lab: Lab, script: str, data_disk: Path | None = None) -> None:
        self.lab = lab
        self.disk = lab.folder / "disk"
        self._mounted = self.disk / "root"
        self.root = lab.view / self._mounted.relative_to("/")
        self.data_disk = data_disk
        self._group = ControlGroup(f"boot-lab-{os.getpid()}")
        self._process: subprocess.Popen[bytes] | None = None
        self._init: int | None = None
        lab.inside(self._make_disk)
        (self.root / "boot-script").write_text(script)
        (self.root / "etc/hosts").write_text(_HOSTS)
        sleep = self.root / "usr/local/bin/sleep"
        sleep.write_text(_SLEEP)
        sleep.chmod(0o755)
        with (self.root / "etc/ssl/certs/ca-certificates.crt").open("a") as bundle:
            bundle.write(lab.files.ca.read_text())
        for program in [*self.root.glob("usr/bin/python*"), *self.root.glob("usr/bin/jq")]:
            program.unlink()
        units = self.root / "etc/systemd/system"
        (units / "google-startup-scripts.service").write_text(_UNIT)
        (units / "lab.target").write_text(_TARGET)

    def _make_disk(self) -> None:
        self.disk.mkdir()
        _sh("mount", "-t", "tmpfs", "-o", "size=3g", "tmpfs", self.disk)
        for name in ("upper", "work", "root", "units", "opt", "tmp"):
            (self.disk / name).mkdir()
        layers = f"lowerdir=/,upperdir={self.disk}/upper,workdir={self.disk}/work"
        _sh("mount", "-t", "overlay", "-o", layers, "overlay", self._mounted)
        # No unit of this machine's own may start in there, nothing of its /opt be found, and its /tmp,
        # which a boot empties, be copied file by file to be removed.
        _sh("mount", "--bind", self.disk / "units", self._mounted / "etc/systemd/system")
        _sh("mount", "--bind", self.disk / "opt", self._mounted / "opt")
        _sh("mount", "--bind", self.disk / "tmp", self._mounted / "tmp")

    def leave_free(self, size_mib: int) -> None:
        """Make the disk so small, or so large, that this much of it is free."""

        def resize() -> None:
            about = os.statvfs(self.disk)
            used = (about.f_blocks - about.f_bfree) * about.f_frsize
            _sh("mount", "-o", f"remount,size={used + (size_mib << 20)}", self.disk)

        self.lab.inside(resize)

    @property
    def init(self) -> int:
        """The process id of the host's init, seen from here."""
        assert self._init is not None
        return self._init

    @property
    def files(self) -> Path:
        """The root of the running host, mounts included."""
        return Path(f"/proc/{self.init}/root")

    def boot(self) -> None:
        """Switch on; returns when init runs."""
        self._group.open()
        device = self.lab.inside(self._attach) if self.data_disk else None
        bind = [f"--bind={device}:/dev/disk/by-id/google-persistent-disk-1"] if device else []
        hidden = [
            f"--tmpfs={path}" for path in {Path.home(), _PROJECT, Path(sys.base_prefix)} - {Path("/usr")}
        ]
        # fmt: off
        command = [
            *self._group.enter(), "setpriv", "--pdeathsig", "KILL",
            "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
            "systemd-nspawn", "--quiet", "--boot", f"--directory={self._mounted}", "--machine=lab-host",
            "--register=no", "--keep-unit", "--link-journal=no", "--resolv-conf=off", "--timezone=off",
            "--console=read-only", "--bind=/dev/fuse", *bind, *hidden, "systemd.unit=lab.target",
        ]
        # fmt: on
        console = (self.lab.folder / "console").open("ab")
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_NSPAWN_TMPFS_TMP": "0"}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )

        self._process = self.lab.inside(start)
        while (init := self._find_init()) is None:
            assert self._process.poll() is None, (self.lab.folder / "console").read_text(errors="replace")
            time.sleep(0.02)
        self._init = init

    def _attach(self) -> str:
        done = subprocess.run(
            ["losetup", "--find", "--show", "--read-only", str(self.data_disk)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        self._loop = done.stdout.strip()
        return self._loop

    def _find_init(self) -> int | None:
        """Return the systemd whose parent is systemd-nspawn, below our process."""
        assert self._process is not None
        waiting = [(self._process.pid, "")]
        while waiting:
            pid, parent = waiting.pop()
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if name == "systemd" and parent == "systemd-nspawn":
                    return pid
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                waiting += [(int(child), name) for child in children]
        return None

    def status(self) -> dict[str, Any]:
        """Return the host's own copy of its status; empty until it has one."""
        with contextlib.suppress(OSError, ValueError):
            result: dict[str, Any] = json.loads((self.files / "run/tpu/status.json").read_text())
            return result
        return {}

    def wait(self, *states: str) -> dict[str, Any]:
        """Return the status once its state is one of `states`."""
        until(lambda: self.status().get("state") in states, self)
        return self.status()

    def log(self) -> str:
        """Return the boot's log of all boots."""
        path = self.root / "var/log/tpu/boot.log"
        return path.read_text(errors="replace") if path.exists() else "(no boot.log)"

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command on the host; return what it printed."""
        words = ["nsenter", f"--target={self.init}", "--mount", "--uts", "--ipc", "--net", "--pid", *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def power_off(self) -> None:
        """Orderly."""
        self._end(_POWER_BUTTON)

    def cut_power(self) -> None:
        """Without a word."""
        self._end(signal.SIGKILL)

    def wipe(self, folder: str) -> None:
        """Remove a folder of the disk."""
        shutil.rmtree(self.root / folder)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._init or self._process.pid, number)
        self.ended()

    def ended(self) -> None:
        """Return when the host is off."""
        assert self._process is not None
        try:
            self._process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._init = None
        if self.data_disk:
            self.lab.inside(lambda: _sh("losetup", "--detach", self._loop))
        self._group.close()


@contextlib.contextmanager
def running_lab(folder: Path, metadata: Metadata, backend: str) -> Iterator[Lab]:
    """Yield a lab, closed at the end."""
    assert shutil.which("systemd-nspawn"), "systemd-nspawn is missing: tools/setup.sh system"
    with closing(Lab(folder, metadata, Front(backend))) as lab:
        yield lab


def until(condition: Callable[[], Any], host: Host) -> Any:
    """Return the first answer that is true; fail with the host's log."""
    return limits.until(condition, lambda: host.log() + host.run("journalctl", "--lines=60", check=False))


def ready(host: Host) -> dict[str, Any]:
    """Boot to READY; returns the status."""
    host.boot()
    status = host.wait("ready", "failed")
    assert status["state"] == "ready", host.log()
    return status


def failed(host: Host, stage: str) -> dict[str, Any]:
    """Boot to a failure in `stage`; returns that stage's entry."""
    host.boot()
    status = host.wait("ready", "failed")
    assert (status["state"], status["stage"]) == ("failed", stage), host.log()
    last: dict[str, Any] = status["stages"][-1]
    assert (last["name"], last["state"]) == (stage, "failed")
    return last


def fingerprint(host: Host) -> dict[str, str]:
    """Return the files that a boot leaves below these paths, by content."""
    result = {}
    tops = ["opt/tpu", "etc/tpu", "etc/systemd/system", "etc/profile.d/tpu.sh", "etc/environment"]
    for top in tops:
        root = host.root / top
        for path in [root, *root.rglob("*")] if root.is_dir() else [root]:
            name = str(path.relative_to(host.root))
            if path.is_symlink():
                result[name] = f"-> {os.readlink(path)}"
            # Two files of uv's hold the time of the installation.
            elif (
                path.is_file() and path.name not in {"uv_cache.json", "RECORD"} and "__pycache__" not in name
            ):
                result[name] = f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return result
