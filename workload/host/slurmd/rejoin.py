"""A host that slurmctld has lost, by a crash after the host had come and before that was saved.

Only the start of slurmd registers a host of the cloud: slurmctld doesn't know where to look for it. Without
another one the slice stays, unused and billed, until ResumeTimeout.
"""

from __future__ import annotations

import re
import subprocess

_ANSWER_S = 5.0
_LOST = re.compile(r" State=\S*\+(?:POWERING_UP|NOT_RESPONDING)\b")


def is_lost(name: str) -> bool:
    """Return whether slurmctld answers, and waits for this host, whose slurmd runs."""
    line = ["scontrol", "show", "node", "--oneliner", name]
    try:
        shown = subprocess.run(line, capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return False  # the next look
    return _LOST.search(shown.stdout) is not None
