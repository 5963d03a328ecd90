"""Arguments of `slurmd …`, as the Slurm layer writes them (infra/layers/slurm/slices.py)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from workload.host.errors import RunError

USAGE = "slurmd CONTROLLER PREFIX BUNDLE SECRET SERVER:HOME [--startup=gs://…] [--mount=…]"
_NAMES = ("CONTROLLER", "PREFIX", "BUNDLE", "SECRET", "HOME")
_PATTERNS = {
    "PREFIX": re.compile(r"[a-z][-a-z0-9]*-\d{1,5}"),
    "BUNDLE": re.compile(r"[0-9a-f]{64}"),
    "SECRET": re.compile(r"projects/[^/ ]+/secrets/[A-Za-z0-9_-]+"),
    "HOME": re.compile(r"[^:, ]+:/[^, ]*"),
}
_STARTUP = re.compile(r"gs://([a-z0-9][\w.-]*)/(\S+)")


@dataclass(frozen=True)
class Mount:
    """A file system: `kind` nfs or gcsfuse; `source` SERVER:PATH or a bucket; `target` a folder."""

    kind: str
    source: str
    target: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arguments:
    """Parsed arguments; `startup` is a bucket and an object."""

    controller: str
    prefix: str
    bundle: str
    secret: str
    mounts: tuple[Mount, ...]
    startup: tuple[str, str] | None = None


def parse(words: Sequence[str]) -> Arguments:
    """Parse the words after `slurmd`. Raises RunError that names all that is wrong."""
    options = [word for word in words if word.startswith("--")]
    given = [word for word in words if not word.startswith("--")]
    if len(given) != len(_NAMES):
        raise RunError(f"slurmd takes {len(_NAMES)} words, not {len(given)}: {USAGE}")
    value = dict(zip(_NAMES, given, strict=True))
    problems = [
        f"{name} is {value[name]!r}, which doesn't match {pattern.pattern}"
        for name, pattern in _PATTERNS.items()
        if not pattern.fullmatch(value[name])
    ]
    try:
        ipaddress.ip_address(value["CONTROLLER"])
    except ValueError:
        problems.append(f"CONTROLLER is {value['CONTROLLER']!r}, no address")
    mounts, startup = [Mount("nfs", value["HOME"], "/home", ("hard", "nosuid", "nodev"))], None
    for option in options:
        name, _, text = option.partition("=")
        if name == "--mount" and (mount := _mount(text)):
            mounts.append(mount)
        elif name == "--startup" and (match := _STARTUP.fullmatch(text)):
            startup = match[1], match[2]
        else:
            problems.append(f"{option!r} is no option")
    if problems:
        raise RunError(f"slurmd: {'; '.join(problems)}: {USAGE}")
    return Arguments(
        value["CONTROLLER"], value["PREFIX"], value["BUNDLE"], value["SECRET"], tuple(mounts), startup
    )


def _mount(text: str) -> Mount | None:
    fields = text.split(",")
    if len(fields) != 5 or not fields[3].startswith("/"):
        return None
    kind, server, remote, local, options = fields
    chosen = tuple(option for option in options.split(":") if option)
    if kind == "nfs" and server:
        return Mount(kind, f"{server}:{remote}", local, chosen)
    return Mount(kind, remote, local, chosen) if kind == "gcsfuse" else None
