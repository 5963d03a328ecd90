"""Two teams on a Slurm cluster with accounting: ten jobs of two users, whose limits hold, and what they used.

Real slurmdbd and MariaDB on the controller, whose database is on the disk that outlives it. A job reads a
secret of Secret Manager. Jobs resume after a preemption with notice, and after maintenance of a static slice, in
whose queue a QOS is first, and the team that used less second.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import LOGIN, READS_SECRET, SECRET, SECRET_SHA256, SLURM, SLURM_UP, SSH, ZONE
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step

NODESET = {"acceleratorType": "v6e-1", "zone": ZONE}
VISION = {"name": "vision", "users": ["engineer"], "maxHosts": 2, "qos": ["urgent"]}
TEXT = {"name": "text", "users": ["researcher"], "maxJobs": 1, "fairshare": 3}
ALWAYS = "sbatch --parsable --partition=always --output=/dev/null"
SUBMIT = "sbatch --parsable --output=/dev/null --wrap 'sleep 5'"


def training(run: str, options: str) -> Step:
    """Return the step that submits a training of 150 steps."""
    steps = "--set train.steps=150 --set checkpoint.every_steps=20"
    job = f"--job-name={run} {options} examples/slurm/tiny.sbatch"
    return step.ssh(LOGIN, f"RUN={run} sbatch {job} {steps}", prints=r"batch job \d+")


def resumed(run: str) -> tuple[Step, ...]:
    """Return the steps that wait for a training's end, after it was requeued."""
    jobs = f"squeue --noheader --states=all --name={run} --format"
    until = f"until {jobs}=%T | grep -x COMPLETED; do sleep 1; done; scontrol show job $({jobs}=%i)"
    ended = step.ssh(LOGIN, until, prints="Restarts=[12] ", timeout_s=600)
    return step.done(run), step.resumed(run, 20), ended


SCENARIO = Scenario(
    clock=60,
    settings={
        **SLURM,
        "tpu:zones": [ZONE],
        "slurm:nodesets": [
            {**NODESET, "name": "tpu", "nodeCountDynamicMax": 4, "spot": True},
            {**NODESET, "name": "always", "nodeCountStatic": 1},
        ],
        "slurm:accounting": True,
        "slurm:accounts": [VISION, TEXT],
        "slurm:qos": [{"name": "urgent", "priority": 100, "maxJobsPerUser": 1}],
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
        # Google maintains the static slice's host, and preempts another with notice: no job has failed.
        step.ssh(LOGIN, "sinfo --noheader --partition=always --format=%t", prints=r"\A(idle|alloc)$"),
        step.command(f"tar --create examples/slurm | {SSH} {LOGIN} tar --extract"),
        training("maintained", "--partition=always"),
        training("noticed", "--partition=tpu --nodelist=tpu-0-w0"),
        step.kill("fleet=always-0", "maintenance", run="maintained", between=(24, 60), jitter_s=0),
        step.kill("fleet=tpu-0", "notice", run="noticed", between=(24, 60), jitter_s=0),
        *resumed("noticed"),
        *resumed("maintained"),
        # Its queue, while it starts no job: the QOS is before the team that used less, which came last.
        step.ssh(
            LOGIN,
            f"""
            sudo scontrol update PartitionName=always State=DOWN
            {ALWAYS} --job-name=third --wrap 'sleep 5'
            {ALWAYS} --qos=urgent --job-name=first --wrap 'sleep 5'
            sudo -u researcher {ALWAYS} --job-name=second --wrap 'sleep 5'
            ! sudo -u researcher {ALWAYS} --qos=urgent --wrap hostname 2>&1
            sudo scontrol update PartitionName=always State=UP
            """,
            prints="(?i)invalid qos",
        ),
        step.ssh(
            LOGIN,
            """
            while [ "$(squeue --noheader | wc -l)" -gt 0 ]; do sleep 2; done
            sshare --all --parsable2
            sacct --allusers --noheader --parsable2 --allocations --format=start,user,qos,jobname,state \
              --name=first,second,third | sort
            """,
            prints=r"(?s)text\|researcher.*\|urgent\|first\|.*\|researcher\|normal\|second\|.*\|third\|COMPLETED",
            timeout_s=600,
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
