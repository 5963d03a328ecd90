"""Compiles a step on 8 CPU devices with each remat and prints what the program does.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.preflight.steps '{"layers": 4}' 256
"""

import json
import sys
from dataclasses import replace

import jax

from workload.config import Config, DataConfig, TrainConfig
from workload.model.architecture import Architecture
from workload.preflight.program import Program
from workload.sharding import by_slice, make_mesh
from workload.step import Step


def main() -> None:
    arch, length = Architecture(**json.loads(sys.argv[1])), int(sys.argv[2])
    config = Config(model=arch, data=DataConfig(sequence_length=length), train=TrainConfig(batch_size=8))
    found = {}
    for remat in ("none", "full"):
        changed = replace(config, compute=replace(config.compute, remat=(remat,)))
        step = Step(changed, make_mesh(changed.mesh, by_slice(jax.devices())), "cpu")
        program = Program(step.lower().compile().as_text())
        found[remat] = {
            "flops": program.matmul_flops(),
            "exchanges": [
                {"kind": one.kind, "bytes": one.size_bytes * one.times} for one in program.collectives(8)
            ],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
