"""T2: Llama 3.1 8B at sequence 8192 for v6e-256: memory and collectives of a step, beside MaxText's.

Both are compiled here for the same topology, batch and remat (all of a layer computed again, no
host offload), ours with one example at once, and also with what it can do with the memory that it
needs less; under Python 3.12 and 3.13, whose lock has JAX 0.12, by the same compiler. Sizes are of
the compiler's own list of allocations: the arguments, and the heap of temporaries.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import described
from benchmarks.peers import PINS, maxtext_base, python
from workload.preflight.compiler import buffers, compile_step
from workload.preflight.hlo import HloProgram
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
    """MaxText's train_compile with the sizes of its own recipe, but for host offload."""
    interpreter = python("maxtext")
    blocks = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        line = [
            str(interpreter), "-m", "maxtext.trainers.pre_train.train_compile", maxtext_base(interpreter),
            "compile_topology=v6e-256", "compile_topology_num_slices=1", "model_name=llama3.1-8b",
            f"per_device_batch_size={batch}", "max_target_length=8192", "remat_policy=full",
            "ici_fsdp_parallelism=-1", "dataset_type=synthetic", "enable_checkpointing=false",
            "attention=flash", *(f"sa_block_{name}=2048" for name in blocks),
            f"compile_xla_flags=--xla_dump_to={folder}",
        ]  # fmt: skip
        quiet = {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        begun = time.monotonic()
        done = subprocess.run(line, env={**os.environ, **quiet}, capture_output=True, text=True, check=False)
        compile_s = time.monotonic() - begun
        output = done.stdout + done.stderr
        arguments = re.search(r"argument_size_in_bytes=(\d+)", output)
        if done.returncode or not arguments:
            raise SystemExit(f"MaxText's train_compile failed:\n{output[-3000:]}")
        (text,) = Path(folder).glob("*jit_train_step*after_optimizations.txt")
        temporaries, _ = buffers(Path(folder))
        collectives = Schedule(HloProgram(text.read_text()), 256).collectives
    return {
        "total_gib": (int(arguments[1]) + temporaries) / GIB,
        "arguments_gib": int(arguments[1]) / GIB,
        "exchanged_gb": sum(collective.size_bytes * collective.times for collective in collectives) / 1e9,
        "compile_s": compile_s,
    }
