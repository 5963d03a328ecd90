"""Join of a TPU host to a Slurm cluster: `slurmd …`, which a slice of the Slurm layer runs as root.

    slurmd CONTROLLER PREFIX BUNDLE SECRET HOME [--startup=gs://…] [--mount=TYPE,SERVER,REMOTE,LOCAL,OPTIONS]…

Each start finds done what an earlier one did: packages by their bundle's hash, users, munge's key from Secret
Manager, /home and other mounts. Then slurmd runs as a child, as the node PREFIX-wWORKER.
"""

from workload.host.slurmd.service import COMMAND, run

__all__ = ["COMMAND", "run"]
