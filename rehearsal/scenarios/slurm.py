"""A Slurm cluster on slices that come for jobs, are lost under them, and go when idle; its state outlives it.

Real slurmctld, slurmd and munge in machines that boot, under the roles that the layer's people ask for. A job
from power-up to power-down, two slices together, a slice preempted under a job that ends bit for bit as the
undisturbed one, a zone without chips, the controller's power lost. What is left is the state disk.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CONTROLLER, LOGIN, NO_CAPACITY, SLURM, SLURM_UP, SSH, ZONE
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step

NODESET = {
    "name": "tpu", "acceleratorType": "v6e-16", "zone": ZONE, "fallbackZones": ["us-east5-a"],
    "nodeCountDynamicMax": 8, "spot": True,
}  # fmt: skip
SHORT = f"{SSH} {LOGIN} squeue --noheader --format=%i:%T"


def submit(run: str, options: str = "", prints: str = r"job \d+") -> Step:
    """Return the step that submits the smallest model's training."""
    return step.command(
        f"RUN={run} tpu slurm submit dev examples/slurm/tiny.sbatch -- --job-name={run} --export=ALL,RUN={run} {options}",
        prints=prints,
    )


def waits(until: str, timeout_s: int = 300) -> Step:
    """Return the step that waits until a command of the login node succeeds."""
    return step.command(
        f"""timeout {timeout_s} {SSH} {LOGIN} "bash -c 'until {until}; do sleep 1; done'" """,
        timeout_s=timeout_s + 10,
    )


SCENARIO = Scenario(
    clock=20,
    settings={
        **SLURM,
        "tpu:zones": [ZONE, "us-east5-a"],
        "slurm:nodesets": [NODESET],
    },
    steps=(
        *SLURM_UP,
        step.command("tpu slurm status dev", prints="no jobs"),
        # A slice comes for a job, and two for another, which tries something on all hosts.
        submit("undisturbed"),
        step.done("undisturbed"),
        step.command(f"{SSH} {LOGIN} srun -N 2 --label hostname", prints="(?s)7: tpu-.*", timeout_s=400),
        # Both go when they are idle.
        waits("sinfo --noheader --states=powered_down --format=%D | grep -x 8"),
        step.command("tpu fleet list dev", prints="no nodes"),
        # A slice is taken from under a job, whose next start is in another zone: there are no chips in its own.
        submit("preempted"),
        step.reach("preempted", 15),
        step.fault(
            "there is no v6e left in the zone",
            what=NO_CAPACITY,
            match={"method": "tpu.projects.locations.nodes.create", "path": ZONE},
            times=None,
        ),
        step.command("tpu fleet list dev", prints="READY"),
        step.kill("tpu-us-east5-b-0", "power-loss", run="preempted", between=(15, 30)),
        # The controller loses its power meanwhile: its queue is on a disk of its own.
        step.pull(CONTROLLER),
        waits("scontrol ping | grep UP"),
        step.done("preempted"),
        step.command("tpu fleet list dev", prints="us-east5-a"),
        step.same("undisturbed", "preempted"),
        step.unchanged("slurm"),
        step.destroy("slurm", refused="protected"),
    ),
)
