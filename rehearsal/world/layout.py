"""Paths of a world: one folder, so that nothing remains once it is removed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from rehearsal.errors import WorldError


def cache_dir() -> Path:
    """Return the folder of files that outlive a world (host image, snapshots, bundles), shared with
    set-up.
    """
    named = os.environ.get("TPU_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tpu-pulumi"


class _Below:
    """A path below a world's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: Layout, owner: type[Layout]) -> Path:
        return layout.root / self._name


@dataclass(frozen=True)
class Layout:
    """The paths inside a world's folder."""

    root: Path

    marker = _Below("this-is-a-rehearsal")
    """The mark of a folder that is a world and may be erased as one; the first file to be written."""
    program = _Below("program")
    """The private copy of the tree, in which the Pulumi CLI runs."""
    pulumi_home = _Below("pulumi")
    """PULUMI_HOME: plugins and the CLI's own settings."""
    stacks = _Below("stacks")
    """The file backend with the stacks' state."""
    home = _Below("home")
    """Credentials and ssh files of the person who works in the world."""
    tls = _Below("tls")
    """The CA, the front door's certificate, the bundle of trusted CAs."""
    cloud = _Below("cloud")
    """State of the emulated cloud: objects, disks, hosts."""
    control = _Below("control.sock")
    """The emulated cloud's control socket."""
    cloud_config = _Below("cloud.json")
    """The configuration file that the front door reads."""
    cloud_log = _Below("cloud.log")
    """Output of the front door and its services."""
    kubernetes_config = _Below("kubernetes.json")
    """Configuration of the process with the clusters' control planes; absent in a world without them."""
    clusters = _Below("clusters")
    """State of clusters that are or were there, and what their pods printed."""
    images = _Below("images")
    """Container images that were built in the world."""
    kubernetes_log = _Below("kubernetes.log")
    """Output of that process."""
    bin = _Below("bin")
    """Programs that a world brings along, first on the PATH."""
    state = _Below("world.json")
    """`State` as JSON; it exists while the world is up."""

    def claim(self) -> int:
        """Make the folder this process's own, until it ends or lets go; WorldError where it is another's.

        The descriptor that holds the lock: a process that gets it holds the folder too.
        """
        while self.root not in _CLAIMS:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                fix = "wait for it, or end it with Ctrl+C, or name another folder with --dir"
                raise WorldError(f"another command is at work in {self.root}", fix) from None
            if _is(self.root, descriptor):
                _CLAIMS[self.root] = descriptor
            else:  # whoever had it has erased it meanwhile
                os.close(descriptor)
        return _CLAIMS[self.root]

    def release(self) -> None:
        """Let go of what `claim` took, if it did."""
        if self.root in _CLAIMS:
            os.close(_CLAIMS.pop(self.root))

    @property
    def cgroup_name(self) -> str:
        """The control group that all of the world's processes are in; derived, so that a sweep finds it."""
        return f"rehearsal-{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}"


# The folders that this process has claimed.
_CLAIMS: dict[Path, int] = {}


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class State:
    """A world that is up. Pids are those of the outer pid namespace.

    `init_started` and `supervisor_started` are the kernel's start times (clock ticks since boot, field 22 of
    /proc/PID/stat): with the pid they name a process for good, even after the pid is used again.
    """

    supervisor_pid: int
    supervisor_started: int
    init_pid: int
    init_started: int
    environment: dict[str, str]

    def save(self, path: Path) -> None:
        """Write whole or not at all."""
        scratch = path.with_suffix(".part")
        scratch.write_text(json.dumps(asdict(self), indent=1))
        scratch.rename(path)

    @classmethod
    def load(cls, path: Path) -> State | None:
        """Return the state on disk; None if there is none, WorldError if it can't be read."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as broken:
            fix = f"tpu rehearsal down --dir {path.parent}"
            raise WorldError(f"{path} is not the state of a world: {broken}", fix) from broken

    @property
    def alive(self) -> bool:
        """Return True while the world's init runs."""
        return started(self.init_pid) == self.init_started


def started(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        # The command's name, in parentheses, may hold spaces: count from behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])
