"""Llama 3.1's step beside MaxText's under its recommended flags, by one compiler.

Both are compiled here for the same slices and tokens a chip: MaxText with the flags and sizes of its recipe
for the slice (`peers/maxtext.toml`), ours from `workload/configs`. Memory is of the compiler's own list of
allocations. Waits are counted as preflight counts them, in the schedule that the compiler made of either
program. A row takes 10 to 60 minutes on two cores; the figures of rows that aren't named are kept.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import described
from benchmarks.peers import PINS, maxtext_base, python
from workload.preflight.compiler import buffers, compile_step
from workload.preflight.hlo import HloProgram
from workload.preflight.roofline import forward_flops
from workload.preflight.schedule import Collective, Rates, Schedule
from workload.preflight.slices import GIB, Slices, slices
from workload.train import config as configs
from workload.train.config import Config

RESULT = Path(__file__).parent / "results" / "maxtext.json"
RECIPES: dict[str, Any] = tomllib.loads((Path(__file__).parent / "peers" / "maxtext.toml").read_text())
# Two examples: without host offload the layers' inputs of more don't fit.
_70B = (
    "model.layers=80",
    "model.d_model=8192",
    "model.heads=64",
    "model.d_ff=28672",
    'compute.remat=["full"]',
)

_SMALL = (
    "model.layers=4", "model.d_model=512", "model.heads=4", "model.kv_heads=2", "model.d_ff=2048",
    "model.vocab_size=1024", "data.sequence_length=512",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Step that both compile.

    Attributes:
        slices: that it runs on.
        examples: a chip; of 8192 tokens, of 512 in the small model.
        recipe: of MaxText, in peers/maxtext.toml.
        config: of ours.
        overrides: of the config.
    """

    slices: Slices
    examples: int
    recipe: str
    config: str = "llama-3.1-8b.toml"
    overrides: tuple[str, ...] = ()

    @property
    def rates(self) -> Rates:
        """Speeds of the links."""
        return Rates(dcn_bytes_per_s=self.slices.dcn_bytes_per_s)

    def loaded(self) -> Config:
        """Return the config of our step."""
        batch = f"train.batch_size={self.examples * self.slices.chips}"
        return configs.load(self.config, [batch, *self.overrides])


ROWS = {
    "small-v6e-16": Row(slices("v6e-16"), 48, "small", overrides=_SMALL),
    "8b-v6e-8": Row(
        slices("v6e-8"),
        3,
        "8b without collective products",
        "llama-3.1-8b-v6e-8.toml",
        ('compute.remat=["full"]',),  # one example more than the recipe: attention is computed again
    ),
    "8b-v6e-16": Row(slices("v6e-16"), 3, "8b without collective products", "llama-3.1-8b-v6e-16.toml"),
    "8b-v6e-256": Row(slices("v6e-256"), 4, "8b", "llama-3.1-8b-v6e-256.toml"),
    "8b-2-x-v6e-256": Row(slices("v6e-256", 2), 4, "8b", "llama-3.1-8b-v6e-256.toml"),
    "70b-v6e-256": Row(slices("v6e-256"), 2, "70b", overrides=_70B),
    "70b-2-x-v6e-256": Row(slices("v6e-256", 2), 2, "70b", overrides=_70B),
}


def measure(rows: Sequence[str] = tuple(ROWS)) -> dict[str, Any]:
    """Compile both programs of some rows; keep the figures of the others."""
    known: list[dict[str, Any]] = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    for name in rows:
        for trainer, compiled in (("MaxText", measure_maxtext), ("ours", measure_ours)):
            figures = compiled(ROWS[name])
            print(f"{name}, {trainer}: {figures}", file=sys.stderr, flush=True)
            known = [item for item in known if (item["row"], item["trainer"]) != (name, trainer)]
            known.append({"row": name, "trainer": trainer} | figures)
    order = list(ROWS)
    return {
        "rows": sorted(known, key=lambda item: (order.index(item["row"]), item["trainer"])),
        "what": "Llama 3.1, sequence 8192, a step of a chip as compiled",
        "on": described(["jax", "libtpu"]) | {"peers": {"maxtext": PINS["maxtext"]}},
    }


def measure_ours(row: Row) -> dict[str, Any]:
    """Return the figures of our recipe."""
    compiled = compile_step(row.loaded(), row.slices)
    if compiled.refused:
        raise SystemExit(compiled.refused)
    return _figures(
        row,
        compiled.collectives,
        compiled.arguments_bytes + compiled.temporaries_bytes,
        compiled.program_flops,
        compiled.kernels,
    ) | {"compile_s": compiled.compile_s}


def measure_maxtext(row: Row) -> dict[str, Any]:
    """Return the figures of MaxText's recipe."""
    recipe = RECIPES["recipes"][row.recipe]
    flags = {name: value for group in recipe["flags"] for name, value in RECIPES["flags"][group].items()}
    settings = RECIPES["arguments"] | recipe["arguments"] | {"model_name": recipe["model"]}
    begun = time.monotonic()
    program, arguments_bytes, temporaries_bytes = compile_maxtext(row.slices, row.examples, settings, flags)
    took_s = time.monotonic() - begun
    collectives = Schedule(program, row.slices.chips_each, row.rates).collectives
    together = arguments_bytes + temporaries_bytes
    return _figures(row, collectives, together, program.matmul_flops(), program.kernels()) | {
        "compile_s": took_s
    }


def compile_maxtext(
    where: Slices, examples: int, settings: dict[str, str], flags: dict[str, str]
) -> tuple[HloProgram, int, int]:
    """Compile MaxText's step; return the program, and the bytes of its arguments and temporaries.

    Raises:
        SystemExit: it failed, with the end of its output.
    """
    interpreter = python("maxtext")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        options = " ".join(f"--{name}={value}" for name, value in ({"xla_dump_to": folder} | flags).items())
        line = [
            str(interpreter), str(Path(__file__).parent / "peers" / "maxtext_step.py"), folder,
            maxtext_base(interpreter), f"compile_topology={where.name}",
            f"compile_topology_num_slices={where.count}", f"per_device_batch_size={examples}",
            *(f"{name}={value}" for name, value in settings.items()), f"compile_xla_flags={options}",
        ]  # fmt: skip
        quiet = {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        done = subprocess.run(line, env=os.environ | quiet, capture_output=True, text=True, check=False)
        written = Path(folder) / "program.txt"
        if done.returncode or not written.exists():
            raise SystemExit(f"MaxText's train_compile failed:\n{(done.stdout + done.stderr)[-3000:]}")
        arguments_bytes = json.loads((Path(folder) / "memory.json").read_text())["argument"]
        return HloProgram(written.read_text(), where.count), arguments_bytes, buffers(Path(folder))[0]


def _figures(
    row: Row, collectives: Sequence[Collective], hbm_bytes: int, flops: float, kernels: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "examples": row.examples,
        "hbm_gib": hbm_bytes / GIB,
        "sent_gb": sum(item.times * item.sent_bytes for item in collectives) / 1e9,
        "links_s": sum(item.times * row.rates.seconds(item) for item in collectives),
        "exposed_s": sum(item.times * item.waits_s for item in collectives),
        "tflop": (flops + attention_flops(row, kernels)) / 1e12,
        "kernels": dict(kernels),
    }


def attention_flops(row: Row, kernels: Mapping[str, int]) -> float:
    """Return the FLOPs of attention's kernels, by their blocks of 2048 and how often each runs.

    Raises:
        SystemExit: a kernel is unknown.
    """
    config = row.loaded()
    length, layers = config.data.sequence_length, config.decoder.layers
    forward = forward_flops(config.decoder, length, "splash")["attention"] / layers * row.examples * length
    products = {"fwd": 1.0, "dkv": 2.5}  # two products of scores; five in the backward kernel
    total = 0.0
    for name, runs in kernels.items():
        kind = next((kind for kind in products if kind in name), "")
        if not kind:
            raise SystemExit(f"the program has an unknown kernel, {name}: its FLOPs aren't counted")
        total += runs * products[kind] * forward
    return total
