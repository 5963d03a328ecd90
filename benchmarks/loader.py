"""T5: tokens a second that a host's loader hands over, against what its chips could train on."""
# mypy: allow-untyped-calls

import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.machine import described, spread
from workload.data.loader import Loader
from workload.data.prepare import prepare
from workload.data.tokens import Dataset

LENGTH, BATCH = 8192, 16  # of four chips that take four examples each: a host of a v6e-256
CHIPS_A_HOST = {"v6e-8": 8, "v6e-256": 4}
CHIP_TOKENS_PER_S = 7247  # of Llama-3.1-8B: the most that MaxText published of v6e (preflight/published.toml)
STEPS, DOCUMENTS, DOCUMENT_BYTES = 200, 2000, 32_768


def measure(rounds: int) -> dict[str, Any]:
    """Batches as a run takes them, examples drawn from all over 64 MB of tokens that the cache holds."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        source, out = Path(folder) / "text", Path(folder) / "tokens"
        source.mkdir()
        letters = np.random.default_rng(0)
        for number in range(DOCUMENTS):
            text = letters.integers(97, 123, DOCUMENT_BYTES, dtype=np.uint8).tobytes()
            (source / f"{number:05}.txt").write_bytes(text)
        prepare([source], out)
        rates = [_tokens_per_s(out, seed) for seed in range(rounds)]
    needed = {name: chips * CHIP_TOKENS_PER_S for name, chips in CHIPS_A_HOST.items()}
    return {
        "tokens_per_s": spread(rates),
        "times_needed": {name: min(rates) / rate for name, rate in needed.items()},
        "goal_times_needed": 10,
        "length": LENGTH,
        "batch": BATCH,
        "on": described(["jax", "numpy"]),
    }


def _tokens_per_s(folder: Path, seed: int) -> float:
    singledevicesharding = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    loader = Loader(Dataset(folder, LENGTH), BATCH, seed, singledevicesharding)
    jax.block_until_ready(loader.batch(1))
    begun = time.perf_counter()
    for step in range(2, 2 + STEPS):
        jax.block_until_ready(loader.batch(step))
    took_s = time.perf_counter() - begun
    loader.close()
    return STEPS * BATCH * LENGTH / took_s
