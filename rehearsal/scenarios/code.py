"""Your own script is preempted, resumes from its own checkpoint, and its logs outlive its hosts.

A program of somebody's own: a JAX script that knows nothing of this project, with a package of its own,
and a checkpoint that it keeps itself. Its slice is taken away without notice; what its workers printed
until then is in Cloud Logging, and once the slice is back they resume where they were.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import spot
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=20,
    settings={
        "tpu:code": "rehearsal/scenarios/code",
        "tpu:slices": [spot("v6e-16", "python train.py")],
    },
    steps=(
        step.up("storage"),
        # Errors in the user's own code are reported before anything is uploaded.
        step.settings({"tpu:code": "rehearsal/scenarios/nowhere"}),
        step.command(
            "tpu publish dev",
            prints=(
                "tpu:code: rehearsal/scenarios/nowhere does not exist.*Nothing was published. Next: "
                "tpu publish dev"
            ),
            fails=True,
        ),
        step.settings({"tpu:code": "rehearsal/scenarios/code"}),
        step.publish("cpu"),
        step.up("network", "data"),
        step.up("tpu"),
        step.ready("tpu-dev"),
        step.logged("tpu-dev", 4, prints="einops 0.8.2; from the beginning"),
        # Without notice, once every worker has a checkpoint. The hosts and their disks are gone, their
        # lines aren't.
        step.logged("tpu-dev", 4, prints=r"step \d{2,} of 600"),
        step.preempt("tpu-dev", "power-loss", run="own"),
        step.logged("tpu-dev", 4, prints=r"step \d{2,} of 600"),
        step.logged("tpu-dev", 4, prints=r"ready after \d+ s", unit="google-startup-scripts.service"),
        step.recover("tpu-dev"),
        step.logged("tpu-dev", 4, prints=r"einops 0.8.2; resumed at step [1-9]\d+"),
        # A process that dies is started again, as the trainer is; its heartbeat has the reason.
        step.logged("tpu-dev", 4, prints=r"step 1\d\d of 600"),
        step.ssh("tpu-dev", "sudo systemctl kill --signal=KILL tpu-job"),
        step.heartbeat("tpu-dev", 4, state="failed", why=r"killed by signal 9: step \d+ of 600"),
        step.logged("tpu-dev", 4, prints="step 600 of 600"),
        step.heartbeat("tpu-dev", 4, state="done"),
        step.destroy("tpu"),
        step.logged("tpu-dev", 4, prints="step 600 of 600"),
    ),
)
