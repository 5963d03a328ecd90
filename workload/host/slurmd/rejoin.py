"""A host that slurmctld has lost, by a crash after the host had come and before that was saved.

Only the start of slurmd registers a host of the cloud: slurmctld doesn't know where to look for it. Without
another one the slice stays, unused and billed, until ResumeTimeout.
"""

from __future__ import annotations

import re
import subprocess

from workload.host.slurmd.jobs import output

_LOST = re.compile(r" State=\S*\+(?:POWERING_UP|NOT_RESPONDING)\b")


def is_lost(name: str) -> bool:
    """Return whether slurmctld answers, and waits for this host, whose slurmd runs."""
    try:
        shown = output("scontrol", "show", "node", "--oneliner", name)
    except (OSError, subprocess.SubprocessError):
        return False  # the next look
    return _LOST.search(shown) is not None
