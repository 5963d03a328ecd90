"""T2: Llama 3.1 8B at sequence 8192 for v6e-256: memory and collectives of a step, beside MaxText's.

Both are compiled here for the same topology, batch and remat (all of a layer computed again, no
host offload), ours with one example at once, and also with what it can do with the memory that it
needs less; under Python 3.12 and 3.13, whose lock has JAX 0.12, by the same compiler. Sizes are of
the compiler's own list of allocations: the arguments, and the heap of temporaries.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.machine import described
from benchmarks.maxtext import RECIPES, compile_maxtext
from benchmarks.peers import PINS
from workload.preflight.compiler import compile_step
from workload.preflight.schedule import Schedule
from workload.preflight.slices import GIB, slices
from workload.train import config as configs

KEPT = 4  # layers whose parameters stay whole: the least that brings collectives below MaxText's
Compile = Callable[[int], dict[str, Any]]


def measure() -> dict[str, Any]:
    """Ours and MaxText's by examples a chip, in the order of the table."""
    programs: list[tuple[int, str, Compile]] = [
        (1, "ours", measure_ours),
        (1, "MaxText", maxtext),
        (4, "ours", measure_ours),
        (4, f"ours, `keep_gathered = {KEPT}`", partial(measure_ours, keep_gathered=KEPT)),
        (4, "MaxText", maxtext),
    ]
    rows = []
    for batch, name, compiled in programs:
        item = compiled(batch)
        print(f"{name}, {batch} a chip: {item['total_gib']:.2f} GiB", file=sys.stderr, flush=True)
        rows.append({"examples": batch, "trainer": name} | item)
    return {
        "rows": rows,
        "what": "Llama-3.1-8B, sequence 8192, v6e-256, remat of all, no host offload",
        "on": described(["jax", "libtpu"]) | {"peers": {"maxtext": PINS["maxtext"]}},
    }


def measure_ours(batch: int, keep_gathered: int = 0) -> dict[str, Any]:
    """Our recipe, with all of a layer computed again, in the loop that takes the least memory."""
    overrides = [f"train.batch_size={256 * batch}", 'compute.remat=["full"]', "compute.examples_at_once=1"]
    overrides.append(f"compute.keep_gathered={keep_gathered}")
    compiled = compile_step(configs.load("llama-3.1-8b-v6e-256.toml", overrides), slices("v6e-256"))
    if compiled.refused:
        raise SystemExit(compiled.refused)
    return {
        "total_gib": (compiled.arguments_bytes + compiled.temporaries_bytes) / GIB,
        "arguments_gib": compiled.arguments_bytes / GIB,
        "exchanged_gb": sum(collective.size_bytes * collective.times for collective in compiled.collectives)
        / 1e9,
        "compile_s": compiled.compile_s,
    }


def maxtext(batch: int) -> dict[str, Any]:
    """MaxText's step with the sizes of its own recipe, but for host offload, and no flags."""
    settings = RECIPES["arguments"] | {"model_name": "llama3.1-8b", "remat_policy": "full"}
    dump = compile_maxtext(slices("v6e-256"), batch, settings, {})
    collectives = Schedule(dump.program, 256).collectives
    return {
        "total_gib": (dump.arguments_bytes + dump.temporaries_bytes) / GIB,
        "arguments_gib": dump.arguments_bytes / GIB,
        "exchanged_gb": sum(collective.size_bytes * collective.times for collective in collectives) / 1e9,
        "compile_s": dump.took_s,
    }
