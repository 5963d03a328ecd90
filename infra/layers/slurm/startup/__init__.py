"""Start-up script of the controller and the login nodes, and the bundle that holds it.

Made of the parts of a TPU host's script that are the same on any machine, and of `machine.sh`. The loader of
a TPU host (infra/layers/tpu/startup/loader.sh) runs it. It reads these keys of an instance's metadata:

    tpu-slice       name of the machine, for its status
    tpu-bucket      bucket of bundle, program and status
    tpu-bundle      id that `tpu publish` records as slurm:bundle
    slurm-role      controller or login
    slurm-program   name of an object of tpu-bucket, a space, its sha256: the zip with the package `slurm`
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from infra.core.layer import MachineBundle
from infra.layers.tpu import startup as tpu

__all__ = ["BUNDLE", "MACHINE_PARTS", "STAGES", "render"]

MACHINE_PARTS = ("prelude", "status", "runner", "identity", "bundle", "python", "logs")
"""The parts of a TPU host's script, in the order in which they are joined."""

STAGES = ("machine", "bundle", "python", "packages", "program", "role")
"""The stages in the order in which they run."""


def render() -> str:
    """Return the whole script."""
    parts = resources.files(tpu) / "parts"
    shared = [(parts / f"{part}.sh").read_text("utf-8") for part in MACHINE_PARTS]
    return "\n".join([*shared, (resources.files(__name__) / "machine.sh").read_text("utf-8")])


BUNDLE = MachineBundle(
    key="slurm:bundle",
    script=render,
    wheels=Path("infra/layers/pipeline/function/requirements.txt"),
    packages=Path("tools/slurm/packages.txt"),
)
"""What `tpu publish` builds for Slurm's machines; its slurm.tar.gz is also what TPU hosts unpack."""
