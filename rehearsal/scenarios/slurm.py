"""A Slurm cluster whose nodes are hosts of slices: slices come for jobs, are lost under them, and go when idle.

A real slurmctld, slurmd and munge in machines that boot: a job from power-up to power-down, two slices
together, a zone without chips, and the controller killed. What is left after the stack is its state disk.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION, SSH
from rehearsal.scenario.scenario import Scenario

LOGIN = "slurm-dev-login-0"
TOKENS = "/home/engineer/tokens"
SETTINGS = {
    "tpu:slices": [],
    "tpu:zones": ["us-east5-b", "us-east5-a"],
    "slurm:nodesets": [
        {
            "name": "tpu",
            "acceleratorType": "v6e-16",
            "zone": "us-east5-b",
            "fallbackZones": ["us-east5-a"],
            "nodeCountDynamicMax": 8,
            "spot": True,
        }
    ],
    "slurm:users": ["user:ml-engineer@example.com"],
    "slurm:accountUsers": ["user:platform-engineer@example.com"],
    "slurm:suspendTimeS": 30,
    "slurm:ssh": SSH + " {node} {command}",
}

SCENARIO = Scenario(
    clock=20,
    settings=SETTINGS,
    steps=(
        *FOUNDATION,
        step.up("tpu"),
        step.up("slurm"),
        step.command(
            f"timeout 300 bash -c 'until {SSH} {LOGIN} sinfo; do sleep 2; done'",
            prints="idle~ +tpu-",
            timeout_s=310,
        ),
        step.command("tpu slurm status dev", prints="no job"),
        step.start("job", f"{SSH} {LOGIN} srun -p tpu -N 1 --ntasks-per-node=1 hostname"),
        step.stop("job", prints="tpu-0-w3", wait=True, timeout_s=400),
        step.command(f"{SSH} {LOGIN} sinfo", prints="idle +tpu-"),
        step.destroy("slurm"),
    ),
)
