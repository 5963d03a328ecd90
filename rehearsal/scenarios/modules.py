"""A module of flax is sent by one command, trains on four hosts, is preempted, and ends with the same bits.

`tpu run` takes a config of the trainer, and with it the folder that holds the user's module. The decoder isn't
involved: the module is imported from that folder. Then the same for examples/own-model, whose loop and
checkpoints in the bucket are its own.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step

NODE = "tpu-us-east5-b-0"


def _run(name: str) -> Step:
    """Return the start of the example's run on a slice, both of that name."""
    return step.start(
        name,
        f"tpu run dev examples/flax/transformer.toml --name {name} --slice v6e-16 --stop-when-done --yes",
    )


def _end(name: str) -> Step:
    """Return the end of that command."""
    prints = rf"(?s)step 60/60 .*{name}: done after.*its slice is deleted"
    return step.stop(name, prints=prints, wait=True, timeout_s=1800)


SCENARIO = Scenario(
    clock=20,
    settings={"tpu:slices": [], "tpu:zones": ["us-east5-b"]},
    steps=(
        *FOUNDATION,
        step.up("tpu"),
        _run("reference"),
        _end("reference"),
        _run("interrupted"),
        step.kill(NODE, "power-loss", run="interrupted", between=(25, 50)),
        _end("interrupted"),
        step.resumed("interrupted", 10),
        step.same("reference", "interrupted"),
        step.start(
            "own-model",
            "tpu run dev examples/own-model --name own-model --slice v6e-16 --env STEPS=800 --stop-when-done --yes",
        ),
        step.logged(NODE, 4, prints="4 devices, from step 0$"),
        # The save before it is complete.
        step.logged(NODE, 4, prints=r"step [4-9]\d of 800"),
        step.preempt(NODE, "power-loss", run="own-model"),
        step.stop(
            "own-model",
            prints=r"(?s)from step [1-9]\d.*step 800 of 800.*own-model: done after.*its slice is deleted",
            wait=True,
            timeout_s=1800,
        ),
    ),
)
