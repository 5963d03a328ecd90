"""A module of flax is sent by one command, trains on four hosts, is preempted, and ends with the same bits.

`tpu run` takes a config of the trainer, and with it the folder that holds the user's module. The decoder isn't
involved: the module is imported from that folder.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step


def _run(name: str) -> Step:
    """Return the start of the example's run on a slice of the same name."""
    return step.start(
        name,
        f"tpu run dev examples/flax/transformer.toml --name {name} --slice v6e-16 --stop-when-done --yes"
        f" -- --name {name}",
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
        step.kill("tpu-us-east5-b-0", "power-loss", run="interrupted", between=(25, 50)),
        _end("interrupted"),
        step.resumed("interrupted", 10),
        step.same("reference", "interrupted"),
    ),
)
