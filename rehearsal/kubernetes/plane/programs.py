"""Paths of the control plane's programs, which tools/install.sh builds once."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from rehearsal.kubernetes.errors import KubernetesError

_INSTALL = Path(__file__).resolve().parents[3] / "tools" / "install.sh"
KUBERNETES, QUEUE, QUEUE_PREVIOUS = "kubernetes", "queue", "queue-previous"
_BUILT_BY = {QUEUE_PREVIOUS: "tools/install.sh queue-previous (about 4 minutes, once)"}


@cache
def folder(tool: str) -> Path:
    """Return the folder of a tool's programs; KubernetesError if it isn't built yet."""
    done = subprocess.run([_INSTALL, "--cached", tool], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fix = _BUILT_BY.get(tool, "tools/setup.sh kubernetes (about 10 minutes, once)")
        raise KubernetesError(f"{tool} isn't built yet", fix)
    return Path(done.stdout.strip())


def program(name: str) -> Path:
    """Return the path of a program, e.g. `kube-apiserver`."""
    tool = KUBERNETES if name.startswith("kube") else QUEUE
    return folder(tool) / name
