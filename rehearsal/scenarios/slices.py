"""Train a job on two slices, each preempted once, and the same loss to the last bit.

One job over two slices (multislice), of which first the one and then the other is taken away. The slice
that stays saves with it, waits at the job's barrier, and continues when the other is back.
"""

from typing import Any

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION, spot, train
from rehearsal.scenario.scenario import Scenario

PAIR: dict[str, Any] = {"name": "pair", "count": 2, "multislice": True}
SCENARIO = Scenario(
    clock=20,
    settings={"tpu:slices": [spot("v6e-8", train("reference", 100, 20), **PAIR)]},
    steps=(
        *FOUNDATION,
        step.up("tpu"),
        step.fleet("create"),
        step.ready("tpu-us-east5-b-0"),
        step.ready("tpu-us-east5-b-1"),
        step.done("reference"),
        step.settings({"tpu:slices": [spot("v6e-8", train("interrupted", 100, 20), **PAIR)]}),
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
