"""Compiles a step on 8 CPU devices with each remat, without LLVM's optimizations, and prints what it does.

At the first length also with the last layer's parameters kept whole.

XLA_FLAGS=--xla_force_host_platform_device_count=8 \\
  python -m tests.workload.preflight.steps '{"layers": 4}' 128 384
"""

import json
import sys
from dataclasses import replace
from typing import Any

import jax

from workload.model.architecture import Architecture
from workload.preflight.program import Program
from workload.train.config import Config, DataConfig, TrainConfig
from workload.train.sharding import by_slice, make_mesh
from workload.train.step import Step


def main() -> None:
    arch, lengths = Architecture(**json.loads(sys.argv[1])), [int(word) for word in sys.argv[2:]]
    config = Config(model=arch, train=TrainConfig(batch_size=8))
    results: dict[str, dict[int, Any]] = {}
    variants = [(remat, 0, length) for remat in ("none", "full") for length in lengths]
    variants += [(remat, 1, lengths[0]) for remat in ("none", "full")]
    for remat, stored, length in variants:
        compute = replace(config.compute, remat=(remat,), keep_gathered=stored)
        changed = replace(config, compute=compute, data=DataConfig(sequence_length=length))
        step = Step(changed, make_mesh(changed.mesh, by_slice(jax.devices())), "cpu")
        program = Program(step.lower().compile({"xla_backend_optimization_level": 0}).as_text())
        results.setdefault(f"{remat} {stored}", {})[length] = {
            "flops": program.matmul_flops(),
            "collectives": [
                {"kind": collective.kind, "bytes": collective.size_bytes * collective.times}
                for collective in program.collectives(8)
            ],
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
