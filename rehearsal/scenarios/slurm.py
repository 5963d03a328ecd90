"""A Slurm cluster on slices that come for jobs, are lost under them, and go when idle; its state outlives it.

Real slurmctld, slurmd and munge in machines that boot, under the roles that the layer's people ask for. Two
slices together; jobs whose host reboots, is preempted with notice, or loses its slice for good, and the next
one's zone has no chips; the controller's power lost. Each goes on from its checkpoint, the last bit for bit as
the undisturbed one; a bug fails at once. Slices go when idle, and what is left is the state disk.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CONTROLLER, LOGIN, NO_CAPACITY, SLURM, SLURM_LEFT, SLURM_UP, SSH, ZONE
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step

OTHER = "us-east5-a"


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


def on_login(line: str, prints: str = "", timeout_s: int = 300) -> Step:
    """Return the step that runs a line on the login node."""
    return step.command(f"{SSH} {LOGIN} '{line}'", prints=prints, timeout_s=timeout_s)


def again(run: str) -> Step:
    """Return the step that waits for the end of a job that was queued again, which has cost it nothing."""
    jobs = f"squeue --noheader --states=all --name={run} --format"
    return on_login(
        f"until {jobs}=%T | grep -x COMPLETED; do sleep 1; done; scontrol show job $({jobs}=%i)",
        prints=f"(?s)JobName={run}.*Restarts=1 .*ExitCode=0:0",
    )


BUG = (
    "sbatch --wait -p reboots --job-name=bug examples/slurm/tiny.sbatch --set model.layers=none;"
    " scontrol show job $(squeue --noheader --states=all --name=bug --format=%i)"
)
SCENARIO = Scenario(
    clock=60,
    settings={
        **SLURM,
        "tpu:zones": [ZONE, OTHER],
        "slurm:nodesets": [
            nodeset("tpu", "v6e-16", ZONE, 8, fallbackZones=[OTHER]),
            nodeset("reboots", "v6e-1", OTHER, 1),
            nodeset("notice", "v6e-1", OTHER, 1),
        ],
    },
    steps=(
        *SLURM_UP,
        step.command("tpu slurm status dev", prints="no jobs"),
        # Slices come for jobs: two together for one that tries something on all hosts, then one for each of two.
        step.start("together", f"{SSH} {LOGIN} srun -N 2 --label hostname"),
        step.command(f"tar --create examples/slurm | {SSH} {LOGIN} tar --extract"),
        on_login(
            "for run in reboots notice; do RUN=$run sbatch -p $run --job-name=$run examples/slurm/tiny.sbatch"
            " --set train.steps=400 --set checkpoint.every_steps=20; done",
            prints="(?s)batch job.*batch job",
        ),
        # A bug waits for the host of the first of them, and fails at once.
        step.start("bug", f"{SSH} {LOGIN} '{BUG}'"),
        # A host that reboots under a job, and one that is told to save. Two more jobs wait for the slices.
        step.kill("fleet=reboots-0", "reboot", run="reboots", between=(20, 60), jitter_s=0).by("ml-engineer"),
        submit("undisturbed"),
        submit("preempted"),
        # Has the first one's slice after it, so that the other one's job needs a new one.
        on_login('sbatch --output=/dev/null --wrap "sleep 60"', prints="batch job"),
        step.kill("fleet=notice-0", "notice", run="notice", between=(20, 60), jitter_s=0).by("ml-engineer"),
        step.stop("together", prints="(?s)7: tpu-.*", wait=True, timeout_s=400),
        # A slice is taken from under a job, whose next start is in another zone: there are no chips in its own.
        step.reach("preempted", 12),
        step.fault(
            "there is no v6e left in the zone",
            what=NO_CAPACITY,
            match={"method": "tpu.projects.locations.nodes.create", "path": ZONE},
            times=None,
        ),
        step.kill("fleet=tpu-1", "power-loss", run="preempted", between=(12, 24)),
        # The controller loses its power meanwhile: its queue is on a disk of its own.
        step.pull(CONTROLLER),
        on_login("until scontrol ping | grep UP; do sleep 1; done"),
        step.done("undisturbed"),
        step.done("reboots"),
        step.resumed("reboots", 20),
        again("reboots"),
        step.stop("bug", prints="(?s)JobState=FAILED.*Restarts=0 .*ExitCode=2:0", wait=True),
        step.done("notice"),
        step.resumed("notice", 20),
        again("notice"),
        step.done("preempted"),
        step.command("tpu fleet list dev", prints=OTHER),
        step.same("undisturbed", "preempted"),
        step.unchanged("slurm"),
        step.command(
            "until tpu fleet list dev | grep 'no nodes'; do sleep 2; done", prints="no nodes", timeout_s=300
        ),
        step.destroy("slurm", refused="protected"),
        step.command("pulumi -C infra/layers/slurm state unprotect --all --yes -s dev").by(
            "platform-engineer"
        ),
        step.destroy("slurm"),
        *SLURM_LEFT,
    ),
)
