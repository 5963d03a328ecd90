"""Sixty-four hosts of a v6e-256 boot to READY.

A whole v6e-256: 64 hosts boot, run the start-up script and meet at the barrier. No JAX: its 64 processes
would show nothing about the boot that four don't.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import spot
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=60,
    settings={
        "data:throughputMibps": 6400,  # 100 for each host
        "tpu:slices": [spot("v6e-256")],
    },
    steps=(
        step.preview(),
        step.up("storage"),
        step.publish("bare"),
        step.up("network", "data"),
        step.up("tpu"),
        step.ready("tpu-dev", timeout_s=1200),
        step.ssh("tpu-dev", 'echo "worker $WORKER_ID of $WORKER_COUNT"', prints=r"worker \d+ of 64"),
        step.destroy("tpu"),
    ),
)
