"""Llama 3.1's step beside MaxText's under its recommended flags, by one compiler.

Both are compiled here for the same slices and tokens a chip: MaxText with the flags and sizes of its recipe
for the slice (`peers/maxtext.toml`), ours from `workload/configs`. Either compilation ends before code is
generated (`dumps.py`): memory is of the compiler's own list of allocations, and waits are counted as
preflight counts them, in the schedule, with matrix products at the chip's peak in place of estimates of
cycles. The figures of rows that aren't named are kept.
"""

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.dumps import ByProducts, Dump, dumped, folder
from benchmarks.machine import described
from benchmarks.peers import PINS, maxtext_base, python
from workload.preflight.roofline import forward_flops
from workload.preflight.schedule import Rates
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

    @property
    def settings(self) -> list[str]:
        """Overrides with the batch."""
        return [f"train.batch_size={self.examples * self.slices.chips}", *self.overrides]

    def loaded(self) -> Config:
        """Return the config of our step."""
        return configs.load(self.config, self.settings)


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
    with folder() as where:
        line = [
            sys.executable, "-m", "workload", "preflight", row.config, "--fresh", "--slice", row.slices.name,
            "--slices", str(row.slices.count), *(word for item in row.settings for word in ("--set", item)),
        ]  # fmt: skip
        return _figures(row, dumped(line, where, row.slices.count, {"TMPDIR": str(where)}))


def measure_maxtext(row: Row) -> dict[str, Any]:
    """Return the figures of MaxText's recipe."""
    recipe = RECIPES["recipes"][row.recipe]
    flags = {name: value for group in recipe["flags"] for name, value in RECIPES["flags"][group].items()}
    settings = RECIPES["arguments"] | recipe["arguments"] | {"model_name": recipe["model"]}
    return _figures(row, compile_maxtext(row.slices, row.examples, settings, flags))


def compile_maxtext(
    slices: Slices, examples: int, settings: Mapping[str, str], flags: Mapping[str, str]
) -> Dump:
    """Compile MaxText's step.

    Raises:
        SystemExit: it failed, with the end of its output.
    """
    interpreter = python("maxtext")
    with folder() as where:
        options = " ".join(f"--{name}={value}" for name, value in {"xla_dump_to": where, **flags}.items())
        line = [
            str(interpreter), "-m", "maxtext.trainers.pre_train.train_compile", maxtext_base(interpreter),
            f"compile_topology={slices.name}", f"compile_topology_num_slices={slices.count}",
            f"per_device_batch_size={examples}", *(f"{name}={value}" for name, value in settings.items()),
            f"compile_xla_flags={options}",
        ]  # fmt: skip
        return dumped(line, where, slices.count, {})


def _figures(row: Row, dump: Dump) -> dict[str, Any]:
    collectives = ByProducts(dump.program, row.slices.chips_each, row.rates).collectives
    kernels = dump.program.kernels()
    return {
        "examples": row.examples,
        "hbm_gib": (dump.arguments_bytes + dump.temporaries_bytes) / GIB,
        "host_gib": dump.host_bytes / GIB,
        "sent_gb": sum(item.times * item.sent_bytes for item in collectives) / 1e9,
        "links_s": sum(item.times * row.rates.seconds(item) for item in collectives),
        "exposed_s": sum(item.times * item.waits_s for item in collectives),
        "tflop": (dump.program.matmul_flops() + attention_flops(row, kernels)) / 1e12,
        "kernels": kernels,
        "took_s": dump.took_s,
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
