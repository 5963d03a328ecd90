"""Part of the tests with a real slurmctld, in namespaces of its own: what was seen, as JSON.

python -m tests.slurm.inside FOLDER
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from infra.layers.slurm import names
from slurm.cluster import Cluster
from slurm.decide import Slice, Update, World, decide
from slurm.errors import SlurmError
from slurm.keep import Scontrol, declared
from slurm.machine import call
from slurm.recovered import Recovered
from tests.limits import HANG_S
from tests.slurm import lab, real
from workload.host.slurmd import epilog, install
from workload.host.slurmd.jobs import is_lost, requeue_earlier

SLICES = {
    "slurm:nodesets": [
        {**lab.NODESET, "acceleratorType": "v6e-8", "nodeCountDynamicMax": 6},
        {**lab.NODESET, "name": "large", "nodeCountDynamicMax": 8},
    ]
}


def main(folder: Path) -> dict[str, Any]:
    """Return what was seen."""
    slurm = real.Slurmctld(folder, lab.settings(SLICES))
    call(["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"])  # as the hosts' image has it
    slurm.start("munge.service")
    slurm.start()
    try:
        # First, since only the backfill scheduler, which looks each 30 s, begins heterogeneous jobs.
        parts = slurm.submit("--nodelist=tpu-4-w0", ":", "--nodelist=tpu-5-w0")
        refused = {
            what: slurm.refused(*options, script=script) for what, (options, script) in _BAD_JOBS.items()
        }
        refused["another size"] = _moved(slurm)
        seen = {**_recovered(slurm, parts), **_older_state(slurm), **_unknown_user(slurm)}
        return {"refused": refused, **seen, **_lost(slurm)}
    finally:
        slurm.close()


def _state(job: str, *states: str) -> str:
    """Wait until a job is in one of some states, and return that."""
    end_s = time.monotonic() + HANG_S
    line = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]
    while (state := " ".join({*call(line).split()})) not in states:
        assert time.monotonic() < end_s, state
        time.sleep(0.1)
    return state


_BAD_JOBS: dict[str, tuple[list[str], str]] = {
    "memory beyond a host": (["--mem=4000G"], "#!/bin/sh\n"),
    "more slices than there are": (["-N", "9"], "#!/bin/sh\n"),
    "a range of slices": (["-N", "1-2"], "#!/bin/sh\n"),
    "hosts of more slices": (["--partition=large", "-N1", "-w", "large-0-w0,large-1-w0"], "#!/bin/sh\n"),
    "half a host's chips": (["--gres=tpu:1"], "#!/bin/sh\n"),
    "CRLF": ([], "#!/bin/sh\r\nhostname\r\n"),
    "no shebang": ([], "hostname\n"),
    "a name of two lines": (["--job-name=a\nb"], "#!/bin/sh\n"),
}


def _moved(slurm: real.Slurmctld) -> str:
    """Move a waiting job to slices of another size; return what scontrol says."""
    job = slurm.submit("--hold")
    try:
        call(["scontrol", "update", f"JobId={job}", "Partition=large"])
    except SlurmError as error:
        return str(error)
    finally:
        call(["scancel", job])
    return ""


def _recovered(slurm: real.Slurmctld, parts: str) -> dict[str, Any]:
    """Start slurmctld again under jobs whose hosts are coming, and queue them again.

    `parts`: a heterogeneous job.
    """
    _state(parts, "CONFIGURING")
    job = slurm.submit()
    real.until("tpu-0-w0", ["sinfo", "--noheader", "--states=powering_up", "--Node", "--format=%N"])
    time.sleep(1.1)  # times of Slurm have seconds
    before = Recovered()
    before.requeue(Scontrol().read())
    untouched = _state(job, "CONFIGURING", "PENDING")
    slurm.stop()
    slurm.start()
    kept = _state(job, "CONFIGURING")
    recovered = Recovered()
    recovered.requeue(Scontrol().read())
    restarts = [_restarts(job), _restarts(parts)]
    call(["scancel", job, parts])
    return {"untouched": untouched, "kept": kept, "restarts": restarts}


def _restarts(job: str) -> list[str]:
    """Return how often each component of a job was queued again."""
    return re.findall(r"Restarts=(\d+)", call(["scontrol", "show", "job", job]))


def _older_state(slurm: real.Slurmctld) -> dict[str, Any]:
    """Lose the newest states of nodes under a running job, as a loss of power does; then let `decide` act."""
    saved, kept = Path(names.STATE_SAVE, "node_state"), Path("/mnt/node_state")
    slurm.stop()  # which saves it
    shutil.copy(saved, kept)
    slurm.start()
    job = slurm.submit("--nodelist=tpu-2-w0")
    real.until("tpu-2-w0", ["sinfo", "--noheader", "--states=powering_up", "--Node", "--format=%N"])
    host = _host("tpu-2-w0")
    try:
        _state(job, "RUNNING")
        maps = Path(f"/proc/{host.pid}/maps").read_text()
        slurm.stop()
        shutil.copy(kept, saved)
        host.kill()
        slurm.start()
        known = Scontrol().read()
        actions = _decided(slurm, known)
        for action in actions:
            if isinstance(action, Update):
                Scontrol().update(action)
        return {
            "cgroup plugins": sorted(
                {line.rpartition("/")[2] for line in maps.splitlines() if "/cgroup_v" in line}
            ),
            "cgroup mount": call(["stat", "--file-system", "--format=%T", "/sys/fs/cgroup"]).strip(),
            "job before": next(item.state for item in known.jobs if item.id == job),
            "node before": sorted(known.nodes["tpu-2-w0"].flags | {known.nodes["tpu-2-w0"].base}),
            "actions": [[*action.hosts, action.state] for action in actions if isinstance(action, Update)],
            "job after": _state(job, "PENDING"),
        }
    finally:
        host.kill()
        host.wait(HANG_S)


def _unknown_user(slurm: real.Slurmctld) -> dict[str, Any]:
    """Run a person's job on a host that doesn't know the person; return what it says of itself.

    It leaves libtpu's lock, held by a process that slurmd has lost; the host has no epilog yet.
    """
    output = Path("/mnt/output/id")
    output.parent.mkdir(mode=0o777)
    output.parent.chmod(0o777)
    lock = Path(epilog.LOCK)
    lost = f"(setsid sh -c 'exec 9>{lock}; exec sleep 600' &)\nuntil [ -e {lock} ]; do sleep 0.1; done\n"
    script = f"#!/bin/sh\n{lost}id >{output}.new; mv {output}.new {output}\n"
    job = slurm.submit("--nodelist=tpu-3-w0", script=script)
    real.until("tpu-3-w0", ["sinfo", "--noheader", "--states=powering_up", "--Node", "--format=%N"])
    others = Path("/mnt/passwd")
    known = Path("/etc/passwd").read_text().splitlines(keepends=True)
    others.write_text("".join(line for line in known if not line.startswith("ada:")))
    # An Epilog removes files of /tmp, where this checkout may be: only a layer over it is changed.
    layer = [Path("/mnt/upper"), Path("/mnt/work")]
    for folder in layer:
        folder.mkdir()
        folder.chmod(0o1777)
    options = f"lowerdir=/tmp,upperdir={layer[0]},workdir={layer[1]}"
    call(["mount", "-t", "overlay", "-o", options, "overlay", "/tmp"])
    lock.unlink(missing_ok=True)  # of a libtpu that this machine runs: the job would not wait for its own
    unshared = ("unshare", "--mount", "sh", "-c", f'mount --bind {others} /etc/passwd; exec "$@"', "sh")
    host = _host("tpu-3-w0", *unshared)
    try:
        _state(job, "COMPLETED")
        without = [len(epilog.holders([epilog.LOCK])), lock.exists(), _reason("tpu-3-w0")]
        install.epilog()
        _state(slurm.submit("--nodelist=tpu-3-w0", script="#!/bin/sh\n"), "COMPLETED")
        after = [len(epilog.holders([epilog.LOCK])), lock.exists(), _reason("tpu-3-w0")]
        return {"unknown user": output.read_text(), "without epilog": without, "epilog": after}
    finally:
        host.kill()
        host.wait(HANG_S)


def _reason(name: str) -> str:
    """Return why a node is drained; empty: it isn't."""
    match = re.search(r"Reason=(.*)", call(["scontrol", "show", "node", name]))
    return match[1] if match else ""


def _lost(slurm: real.Slurmctld) -> dict[str, Any]:
    """Lose the registration of a host that has come; start its slurmd again."""
    saved, kept = Path(names.STATE_SAVE, "node_state"), Path("/mnt/node_state")
    call(["scontrol", "update", "NodeName=tpu-1-w0", "State=POWER_UP"])
    real.until("tpu-1-w0", ["sinfo", "--noheader", "--states=powering_up", "--Node", "--format=%N"])
    slurm.stop()
    shutil.copy(saved, kept)
    slurm.start()
    host = _host("tpu-1-w0")
    try:
        _known("tpu-1-w0")
        slurm.stop()
        shutil.copy(kept, saved)
        slurm.start()
        lost = is_lost("tpu-1-w0")
        host.kill()
        host.wait(HANG_S)
        host = _host("tpu-1-w0")
        _known("tpu-1-w0")
        job = slurm.submit("--nodelist=tpu-1-w0")
        _state(job, "RUNNING")
        now = requeue_earlier("tpu-1-w0")
        with mock.patch("time.clock_gettime", return_value=-60.0):  # a boot after the job's start
            later = requeue_earlier("tpu-1-w0")
        return {"lost": lost, "earlier": [now, later == [job], _state(job, "PENDING")]}
    finally:
        host.kill()
        host.wait(HANG_S)


def _known(name: str) -> None:
    end_s = time.monotonic() + HANG_S
    while is_lost(name):
        assert time.monotonic() < end_s, call(["scontrol", "show", "node", name])
        time.sleep(0.1)


def _decided(slurm: real.Slurmctld, known: Cluster) -> list[Any]:
    slices: list[Slice] = declared(slurm.settings, real.REACHED)
    return decide(slices, World(known.nodes, {}, set(), running=known.running))


def _host(name: str, *before: str) -> subprocess.Popen[bytes]:
    """Start slurmd as a host, which takes its files from the controller."""
    Path("/var/spool/slurmd").mkdir(exist_ok=True)
    # -b: Slurm refuses a host that has booted before it was asked for, and this machine runs for longer.
    line = [*before, "slurmd", "-D", "-b", "-N", name, "--conf-server", real.ADDRESS]
    with Path("/var/log/slurmd.out").open("ab") as output:
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
