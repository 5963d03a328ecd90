"""A pod's network namespace, and its containers: each has a root with the image's files and the volumes.

python -m rehearsal.kubernetes.node.sandbox SPEC.json PIPE    (run by `Sandbox.start`, in fresh namespaces)
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rehearsal.hosts.commands import run
from rehearsal.kubernetes.node import logs
from rehearsal.kubernetes.plane.control_plane import ADDRESS, BRIDGE, DIES_WITH_US, NETWORK_BITS

_FILES = ("hosts", "nsswitch.conf", "resolv.conf")  # of /etc, by which names are looked up
_NOT_ROOT = 65532  # the user `nonroot` of distroless images


@dataclass(frozen=True)
class Image:
    """Local stand-in for a container image.

    `root`: a folder with its files, under which changes are the container's own, and `layers` over it, the
    uppermost first; without one the container has `files` alone: path in the container → path here.
    `command` is what it starts, unless the pod has its own; `environment` are its variables.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    root: Path | None = None
    layers: tuple[Path, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def lower(self) -> str:
        """Its folders as overlayfs takes them; empty without a root."""
        return ":".join(map(str, (*self.layers, self.root))) if self.root else ""


@dataclass(frozen=True)
class Container:
    """Specification of a container to start."""

    image: Image
    line: Sequence[str]
    environment: Mapping[str, str]
    mounts: Iterable[tuple[Path, str, bool]]
    directory: str = "/"
    is_root: bool = True


class Sandbox:
    """A pod's network: an interface with the pod's address on the cluster's bridge."""

    def __init__(self, name: str, address: str, folder: Path, hostname: str, namespace: str):
        """`name`: at most 12 characters, unique on this machine."""
        self.name, self._folder, self._hostname = name, folder, hostname
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {hostname}\n")
        domain = "svc.cluster.local"
        (folder / "resolv.conf").write_text(
            f"nameserver {ADDRESS}\nsearch {namespace}.{domain} {domain} cluster.local\noptions ndots:5\n"
        )
        # The image's own may be of a machine without a name server.
        (folder / "nsswitch.conf").write_text("hosts: files dns\n")
        run(["ip", "netns", "add", name])
        port = f"v{name}"
        run(["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name])
        run(["ip", "link", "set", port, "master", BRIDGE, "up"])
        inside = ["ip", "-n", name]
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "address", "add", f"{address}/{NETWORK_BITS}", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "route", "add", "default", "via", ADDRESS])

    def start(self, name: str, container: Container) -> subprocess.Popen[bytes]:
        """Start a container; its output goes to NAME.log in the pod's folder."""
        spec, image = self._folder / f"{name}.json", container.image
        root = self._folder / name
        root.mkdir(exist_ok=True)
        spec.write_text(json.dumps({
            "root": str(root), "lower": image.lower, "etc": str(self._folder),
            "hostname": self._hostname,
            "mounts": [
                *([str(folder), place, True] for place, folder in image.files.items()),
                *([str(folder), place, read_only] for folder, place, read_only in container.mounts),
            ],
            "line": list(container.line), "environment": dict(container.environment),
            "directory": container.directory, "user": 0 if container.is_root else _NOT_ROOT,
        }))  # fmt: skip
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [
                *DIES_WITH_US,
                *("nsenter", f"--net=/run/netns/{self.name}", "--"),
                *("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL"),
                *("--propagation", "private", sys.executable, "-m", __name__, str(spec), str(writing)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).resolve().parents[3],
            start_new_session=True,
            pass_fds=(writing,),
        )
        assert process.stdout is not None
        path = self._folder / f"{name}.log"
        threading.Thread(target=logs.record, args=(process.stdout, path), daemon=True).start()
        os.close(writing)
        os.read(reading, 1)  # until the container's program takes over
        os.close(reading)
        return process

    def close(self) -> None:
        """Take the network away."""
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main() -> None:
    """Build the container's root, enter it, and become its program."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    root = Path(spec["root"])
    _mount("-t", "tmpfs", "-o", "mode=755", "container", str(root))
    if spec["lower"]:
        parts = {name: root / name for name in ("upper", "work", "merged")}
        for part in parts.values():
            part.mkdir()
        layers = f"lowerdir={spec['lower']},upperdir={parts['upper']},workdir={parts['work']}"
        _mount("-t", "overlay", "-o", layers, "overlay", str(parts["merged"]))
        root = parts["merged"]
    for place, mode in (("proc", 0o755), ("dev", 0o755), ("tmp", 0o1777), ("etc", 0o755)):
        (root / place).mkdir(exist_ok=True)
        (root / place).chmod(mode)
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("--rbind", "/dev", str(root / "dev"))
    for folder, place, read_only in [
        *spec["mounts"],
        *([f"{spec['etc']}/{name}", f"/etc/{name}", True] for name in _FILES),
    ]:
        target = root / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(folder).is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        _mount("--bind", folder, str(target))
        if read_only:
            _mount("-o", "remount,bind,ro", str(target))
    socket.sethostname(spec["hostname"])
    os.chroot(root)
    os.chdir(spec["directory"])
    if spec["user"]:
        os.setgroups([])
        os.setgid(spec["user"])
        os.setuid(spec["user"])
    pipe = int(sys.argv[2])
    os.write(pipe, b"1")
    os.close(pipe)
    os.execvpe(spec["line"][0], spec["line"], spec["environment"])


if __name__ == "__main__":
    main()
