"""Twenty random kills, and the same loss to the last bit.

Twenty kills of three kinds at random moments of one run. `--seed` repeats an earlier choice of moments.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION, spot, train
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=60,
    settings={"tpu:slices": [spot("v6e-16", train("reference", 600))]},
    steps=(
        *FOUNDATION,
        step.up("tpu"),
        step.ready("tpu-dev"),
        step.done("reference"),
        step.destroy("tpu"),
        step.settings({"tpu:slices": [spot("v6e-16", train("killed", 600))]}),
        step.up("tpu"),
        step.ready("tpu-dev"),
        step.kills("tpu-dev", run="killed", times=20, steps=600),
        step.done("killed"),
        step.same("reference", "killed"),
    ),
)
