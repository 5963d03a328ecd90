"""Record what slurmctld requests of hosts; it calls this to resume and suspend them, and if a resume failed.

A request wakes the daemon, which goes by the states of Slurm's nodes: one that is lost delays it by a look.
It imports next to nothing, so that slurmctld never waits for Google, nor for hundreds of modules.
https://slurm.schedmd.com/archive/slurm-22.05.8/power_save.html
"""

import json
import os
import sys
import time
from collections.abc import Sequence

VERBS = ("resume", "suspend", "resume-failed")
_MOST_BYTES = 1 << 20  # of the file of jobs


def jobs(path: str) -> list[dict[str, object]]:
    """Return the jobs of SLURM_RESUME_FILE; none where it can't be read: they are for messages alone."""
    try:
        with open(path, "rb") as file:
            listed = json.loads(file.read(_MOST_BYTES))["jobs"]
        return [{"job": int(job["job_id"]), "hosts": str(job.get("nodes_alloc", job.get("nodes", "")))}
                for job in listed]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def record(folder: str, verb: str, hosts: str) -> str:
    """Write a request that a power failure leaves whole or not there; return its file's name."""
    now_s = time.time()
    known: dict[str, object] = {"verb": verb, "hosts": hosts, "at_s": now_s}
    if os.environ.get("SLURM_RESUME_FILE"):
        known["jobs"] = jobs(os.environ["SLURM_RESUME_FILE"])
    name = f"{now_s:017.6f}-{os.getpid()}-{verb}.json"
    path = os.path.join(folder, name)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(known, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return name


def main(arguments: Sequence[str]) -> int:
    """Record a request: `PROGRAM FOLDER VERB HOSTS`; return the exit status, which slurmctld logs."""
    if len(arguments) != 3 or arguments[1] not in VERBS:
        sys.stderr.write(f"usage: request FOLDER {'|'.join(VERBS)} HOSTS\n")
        return 2
    folder, verb, hosts = arguments
    try:
        record(folder, verb, hosts)
    except OSError as error:
        # The daemon sees the states of the nodes all the same.
        sys.stderr.write(f"{verb} of {hosts} isn't recorded: {error.filename}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
