"""Train a job on two slices, each preempted once, and the same loss to the last bit.

One job over two slices (multislice), of which first the one and then the other is taken away. The slice
that stays saves with it, waits at the job's barrier, and continues when the other is back.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=20,
    settings={
        "tpu:slices": [
            {
                "name": "pair",
                "acceleratorType": "v6e-8",
                "count": 2,
                "multislice": True,
                "zones": ["us-east5-b"],
                "spot": True,
                "run": (
                    "train tiny.toml --name reference --set train.steps=100 --set checkpoint.every_steps=20"
                ),
            }
        ]
    },
    steps=(
        step.up("storage"),
        step.publish("cpu"),
        step.up("network"),
        step.up("data"),
        step.up("tpu"),
        step.fleet("create"),
        step.ready("tpu-us-east5-b-0"),
        step.ready("tpu-us-east5-b-1"),
        step.done("reference"),
        step.settings(
            {
                "tpu:slices": [
                    {
                        "name": "pair",
                        "acceleratorType": "v6e-8",
                        "count": 2,
                        "multislice": True,
                        "zones": ["us-east5-b"],
                        "spot": True,
                        "run": (
                            "train tiny.toml --name interrupted --set train.steps=100 --set "
                            "checkpoint.every_steps=20"
                        ),
                    }
                ]
            }
        ),
        step.up("tpu"),
        step.fleet("create"),
        step.ssh("tpu-us-east5-b-0", "sudo systemctl restart google-startup-scripts"),
        step.ssh("tpu-us-east5-b-1", "sudo systemctl restart google-startup-scripts"),
        # With notice the second slice, which saves and goes; the first saves too, and waits.
        step.kill("tpu-us-east5-b-1", "notice", run="interrupted", between=(10, 35)),
        step.recover("tpu-us-east5-b-1"),
        # Without notice the first, with the worker that all others meet at.
        step.kill("tpu-us-east5-b-0", "power-loss", run="interrupted", between=(45, 75)),
        step.recover("tpu-us-east5-b-0"),
        step.done("interrupted"),
        step.resumed("interrupted", 40),
        step.same("reference", "interrupted"),
        step.fleet("delete"),
        step.destroy("tpu"),
    ),
)
