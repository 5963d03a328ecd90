"""A Slurm cluster: slices are created for jobs, lost, and deleted when idle; its state outlives it.

Real slurmctld, slurmd and munge in machines that boot, under the roles that the layer's people ask for. Two
slices together; a job of four hosts of which one reboots; a job that loses its slice for good while there are no
chips in its zone; the controller's power lost. Each goes on from its checkpoint, the first bit for bit as the
undisturbed one; a bug fails at once. Slices go when idle, and what is left is the state disk.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CONTROLLER, LOGIN, NO_CAPACITY, SLURM, SLURM_LEFT, SLURM_UP, SSH, ZONE
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step

OTHER = "us-east5-a"
BUG = "sbatch -p single --job-name=bug examples/slurm/tiny.sbatch --set model.layers=none"
FIRST = "tpu-0-w[0-3]"
"""Hosts of the first slice."""
POWER_DOWN = """
idle=$(sinfo --noheader --Node --format='%N %t' | sed -n 's/ idle$//p' | sort -u | paste -sd,)
[ -z "$idle" ] || sudo scontrol update "NodeName=$idle" State=POWER_DOWN
"""
"""Line of an administrator, who is root on a login node, for whom `SuspendTime` is too long."""


def nodeset(name: str, accelerator: str, zone: str, hosts: int, **more: object) -> dict[str, object]:
    """Return a nodeset of spot slices."""
    known = {"name": name, "acceleratorType": accelerator, "zone": zone, "nodeCountDynamicMax": hosts}
    return {**known, "spot": True, **more}


def submit(run: str, options: str = "", prints: str = r"job \d+") -> Step:
    """Return the step that submits the smallest model's training from this machine."""
    return step.command(
        f"tpu slurm submit dev examples/slurm/tiny.sbatch -- --job-name={run} --export=ALL,RUN={run} {options}",
        prints=prints,
    )


def on_login(line: str, prints: str = "") -> Step:
    """Return the step that runs a line on the login node."""
    return step.command(f"{SSH} {LOGIN} '{line}'", prints=prints)


def training(run: str, steps: int) -> str:
    """Return the line that submits a longer training to the partition of its name."""
    options = f"-p {run} --job-name={run} examples/slurm/tiny.sbatch"
    return f"RUN={run} sbatch {options} --set train.steps={steps} --set checkpoint.every_steps=20"


def ended(run: str, state: str, restarts: str, status: int) -> Step:
    """Return the step that waits for the end of a job; `restarts`: pattern of the number of its requeues."""
    jobs = f"squeue --noheader --states=all --name={run} --format"
    return on_login(
        f"until {jobs}=%T | grep -x {state}; do sleep 1; done; scontrol show job $({jobs}=%i)",
        prints=f"(?s)JobName={run}.*Restarts={restarts} .*ExitCode={status}:0",
    )


SCENARIO = Scenario(
    clock=60,
    settings={
        **SLURM,
        "tpu:zones": [ZONE, OTHER],
        # A job that lost its host begins again after 31 s, on the slice that it had.
        "slurm:suspendTimeS": 36,
        "slurm:nodesets": [
            nodeset("tpu", "v6e-16", ZONE, 8),
            nodeset("single", "v6e-1", ZONE, 1, fallbackZones=[OTHER]),
        ],
    },
    steps=(
        *SLURM_UP,
        step.command("tpu slurm status dev", prints="no jobs"),
        # Slices come for jobs: two together for one that tries something on all hosts, then one for each of two.
        step.start("together", f"{SSH} {LOGIN} srun -N 2 --label hostname"),
        step.command(f"tar --create examples/slurm | {SSH} {LOGIN} tar --extract"),
        # A bug fails at once, and the next job has its host.
        on_login(f"{BUG}; {training('single', 300)}", prints="(?s)(batch job.*){2}"),
        step.stop("together", prints="(?s)7: tpu-.*", wait=True),
        submit("undisturbed", f"--nodelist='{FIRST}'"),
        submit("rebooted", f"--exclude='{FIRST}'"),
        ended("bug", "FAILED", restarts="0", status=2),
        # The controller loses its power under its jobs: its queue is on a disk of its own. (A job that was submitted
        # 3 s before was lost with it, and its processes were ended.)
        step.reach("rebooted", 1),
        step.pull(CONTROLLER),
        on_login("until scontrol ping | grep UP; do sleep 1; done"),
        # One of four hosts reboots under its job.
        step.kill("fleet=tpu-1", "reboot", run="rebooted", between=(24, 36), jitter_s=0).by("ml-engineer"),
        # A slice is taken from under a job, whose next start is in another zone: there are no chips in its own.
        step.fault(
            "there is no v6e left in the zone",
            what=NO_CAPACITY,
            match={"method": "tpu.projects.locations.nodes.create", "path": ZONE},
            times=None,
        ),
        step.kill("fleet=single-0", "power-loss", run="single", between=(20, 60), jitter_s=0),
        step.done("undisturbed"),
        step.done("single"),
        step.resumed("single", 20),
        step.command("tpu fleet list dev", prints=OTHER),
        ended("single", "COMPLETED", restarts="[12]", status=0),
        step.done("rebooted"),
        ended("rebooted", "COMPLETED", restarts="[12]", status=0),
        step.same("undisturbed", "rebooted"),
        # The idle slice of the undisturbed job has gone; an administrator doesn't wait for the others.
        step.command("until ! tpu fleet list dev | grep 'tpu-0 '; do sleep 1; done"),
        step.ssh(LOGIN, POWER_DOWN),
        step.unchanged("slurm"),
        step.destroy("slurm", refused="protected"),
        step.command("pulumi -C infra/layers/slurm state unprotect --all --yes -s dev").by(
            "platform-engineer"
        ),
        step.command("until tpu fleet list dev | grep 'no nodes'; do sleep 2; done", prints="no nodes"),
        step.destroy("slurm"),
        *SLURM_LEFT,
    ),
)
