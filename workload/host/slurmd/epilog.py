"""Slurm's Epilog on hosts, as root: frees the chips once a job has ended there, before the next one starts.

proctrack/linuxproc loses a process whose parent has ended, which may hold the chips; and libtpu leaves its
lock file when it is killed, which no other user may open. A host has one job at a time
(infra/layers/slurm/conf/nodes.py), so what holds chips at its end was started by it.

It is run without the venv's modules. https://slurm.schedmd.com/archive/slurm-22.05.8/prolog_epilog.html
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

FILE = "/usr/bin/true-after-tpu-job"
"""Of the names that `Epilog` of slurm.conf stands for, as true(1) (infra/layers/slurm/conf/slurm_conf.py)."""
LOCK = "/tmp/libtpu_lockfile"
_LEFT = (LOCK, "/tmp/tpu_logs")
_CHIPS = ("/dev/vfio/", "/dev/accel")
_PATIENCE_S = 30.0


def holders(paths: Sequence[str]) -> list[int]:
    """Return the processes with an open file whose path begins with one of `paths`."""
    pids = set[int]()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):  # it has ended
            for descriptor in os.listdir(folder):
                with suppress(OSError):  # closed
                    if os.readlink(f"{folder}/{descriptor}").startswith(tuple(paths)):
                        pids.add(int(pid))
    return sorted(pids)


def free(
    chips: Sequence[str] = (*_CHIPS, LOCK), left: Sequence[str] = _LEFT, patience_s: float = _PATIENCE_S
) -> list[int]:
    """End what holds the chips, and remove what libtpu left; return the processes that didn't end."""
    give_up = time.monotonic() + patience_s
    while (held := holders(chips)) and time.monotonic() < give_up:
        for pid in held:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            os.unlink(path)
    return held


if __name__ == "__main__":
    if remaining := free():  # slurmd drains the host: Epilog error
        sys.exit(f"{remaining} hold the chips after SIGKILL")
