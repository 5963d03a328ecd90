"""The guide to Slurm as it is printed: each of its commands, and each file of examples/slurm but the container's.

docs/guides/slurm.md: a first job, Llama's job on two slices with a small model, an array of extractions, own
code with its requirements, srun and salloc by hand, and the end, which leaves the state disk.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CONTROLLER, LOGIN, SLURM, SLURM_LEFT, ZONE
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step

GUIDE = "docs/guides/slurm.md"
WHEELS = (
    "python -m pip download --require-hashes --requirement examples/slurm/own-code/requirements.txt"
    " --dest examples/slurm/own-code/wheels"
)
"""The one command of the page that needs a package registry: it runs before the world."""


def nodeset(name: str, accelerator: str, hosts: int) -> dict[str, object]:
    """Return a nodeset of spot slices."""
    known = {"name": name, "acceleratorType": accelerator, "zone": ZONE, "nodeCountDynamicMax": hosts}
    return {**known, "spot": True}


def read(section: str, prints: str) -> Step:
    """Return the step that types what a section of the guide prints."""
    return step.guide(GUIDE, (section,), prints).by("ml-engineer")


SCENARIO = Scenario(
    clock=60,
    prepare=(WHEELS,),
    settings={
        **SLURM,
        "tpu:zones": [ZONE],
        "slurm:nodesets": [
            nodeset("tpu", "v6e-16", 8),
            nodeset("tpu8", "v6e-8", 2),
            nodeset("tpu32", "v6e-32", 16),
        ],
    },
    steps=(
        step.guide(GUIDE, ("2. Up",)),
        step.ready(CONTROLLER),
        step.ready(LOGIN),
        read("3. Log in", r"tpu32 +up +infinite +16 +idle~ tpu32-0-w\[0-7\]"),
        read("4. A first job", r"(?s)0: WORKER_COUNT=4.*job 3: 8 hosts of tpu.*cancelled 3"),
        read("5. Llama 3.1 8B", r"(?s)tpu32-0-w\[0-7\] .*,tpu32-1-w\[0-7\].*tpu-0-w0.*tpu-1-w3.*step 30/30"),
        read(
            "6. Other jobs",
            r"(?s)2 samples, 1 made here.*1 samples, 1 made here.*worker 3 of 4: 4 chips in all.*CpuDevice",
        ),
        read("7. When a host goes", "slices: "),
        step.command("until tpu fleet list dev | grep 'no nodes'; do sleep 2; done", prints="no nodes"),
        step.guide(GUIDE, ("8. Down",)),
        *SLURM_LEFT,
    ),
)
