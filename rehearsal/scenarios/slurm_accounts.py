"""Two teams on a Slurm cluster with accounting: ten jobs of two users, whose limits hold, and what they used.

Real slurmdbd and MariaDB on the controller, whose database is on the disk that outlives it. A job reads a
secret of Secret Manager.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import LOGIN, READS_SECRET, SECRET, SECRET_SHA256, SLURM, SLURM_UP, ZONE
from rehearsal.scenario.scenario import Scenario

VISION = {"name": "vision", "users": ["engineer"], "maxHosts": 2}
TEXT = {"name": "text", "users": ["researcher"], "maxJobs": 1}
SUBMIT = "sbatch --parsable --output=/dev/null --wrap 'sleep 5'"
SCENARIO = Scenario(
    clock=60,
    settings={
        **SLURM,
        "tpu:zones": [ZONE],
        "slurm:nodesets": [
            {"name": "tpu", "acceleratorType": "v6e-1", "zone": ZONE, "nodeCountDynamicMax": 4, "spot": True}
        ],
        "slurm:accounting": True,
        "slurm:accounts": [VISION, TEXT],
        "storage:secrets": ["hf-token"],
    },
    steps=(
        *SECRET,
        *SLURM_UP,
        # A job reads a secret by its host's account; one that no program may read is refused.
        step.command(
            f"""
            echo '#!/bin/bash' >"$HOME/reads.sbatch"
            echo '{READS_SECRET}' >>"$HOME/reads.sbatch"
            tpu slurm submit dev "$HOME/reads.sbatch" --secret hf-token -- --output=reads.txt
            """,
            prints=r"job \d+",
        ),
        step.command(
            'tpu slurm submit dev "$HOME/reads.sbatch" --secret other',
            prints=r"(?s)other.*serviceAccount:tpu-training@.*fix: storage:secrets: \[other\], then tpu up dev storage",
            fails=True,
        ),
        step.ssh(
            LOGIN, "sacctmgr --noheader --parsable2 show associations format=account,user", prints="vision"
        ),
        step.ssh(
            LOGIN,
            f"until grep {SECRET_SHA256} reads.txt; do sleep 2; done; ! scontrol show job | grep of-the-rehearsal",
            prints=SECRET_SHA256,
            timeout_s=600,
        ),
        step.ssh(LOGIN, f"for job in 1 2 3 4 5; do {SUBMIT}; done", prints=r"^\d+"),
        step.ssh(LOGIN, f"for job in 1 2 3 4 5; do sudo -u researcher {SUBMIT}; done", prints=r"^\d+"),
        step.ssh(LOGIN, "sudo -u nobody sbatch --wrap hostname 2>&1 || true", prints="(?i)invalid account"),
        # Never more than two hosts of the one and one job of the other.
        step.ssh(
            LOGIN,
            """
            while [ "$(squeue --noheader | wc -l)" -gt 0 ]; do
              squeue --noheader --states=CONFIGURING,RUNNING --format=%u | sort | uniq -c
              sleep 2
            done | sort -u
            """,
            prints=r"(?s)\A(?!.*[3-9] engineer)(?!.*[2-9] researcher)(?=.*2 engineer).*1 researcher",
            timeout_s=600,
        ),
        # The ten, and the one that read a secret.
        step.ssh(
            LOGIN,
            "sacct --allusers --noheader --parsable2 --allocations --format=user,account,state | sort | uniq -c",
            prints=r"(?s)6 engineer\|vision\|COMPLETED.*5 researcher\|text\|COMPLETED",
        ),
        # A user whom the settings don't list any more.
        step.settings({"slurm:accounts": [VISION, {**TEXT, "users": []}]}),
        step.up("slurm"),
        step.ssh(
            LOGIN,
            """
            until [ -z "$(sacctmgr --noheader show associations user=researcher)" ]; do sleep 1; done
            sudo -u researcher sbatch --wrap hostname 2>&1 || true
            """,
            prints="(?i)invalid account",
            timeout_s=600,
        ),
        step.destroy("slurm", refused="protected"),
    ),
)
