"""E9: processor time of writing shards to memory, by part, beside safetensors and NumPy.

A shard of 48 MB: 24 points of 896 numbers in bfloat16, as eight rows that end in padding. Seconds are of the
processor, which do not grow while others use the machine; the files lie in /dev/shm.
"""

import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save, save_file

from benchmarks.machine import described, spread
from workload.activations import shard
from workload.activations.statistics import Moments
from workload.activations.writer import Content, pack
from workload.runs.store import FolderStore

GOAL = 1.2  # CPU s a GB
POINTS, WIDTH = 24, 896
USED, ROW = [140] * 8, 160


def measure(rounds: int) -> dict[str, Any]:
    """Time each part `rounds` times, after one untimed round."""
    draw = np.random.default_rng(0)
    names = [f"resid_post.{n}" for n in range(POINTS)]
    values = {
        name: [
            draw.standard_normal((ROW, WIDTH), np.float32).astype(ml_dtypes.bfloat16)[:used] for used in USED
        ]
        for name in names
    }
    total = sum(USED)
    content = Content(
        values=values,
        tokens_T=np.zeros(total, np.int32),
        positions_T=np.zeros(total, np.int32),
        lengths=USED,
        samples=range(len(USED)),
        ids=[str(n) for n in range(len(USED))],
        moments={name: Moments.none((WIDTH,)) for name in names},
    )
    digest = hashlib.sha256().hexdigest()
    about = shard.About(0, 1, 1, digest, digest, tuple(names))
    whole = {name: np.concatenate(rows) for name, rows in values.items()}
    raw = b"".join(pack(about, content.tensors()))
    root = Path(tempfile.mkdtemp(prefix="benchmark-", dir="/dev/shm"))
    store = FolderStore(root)

    def save_arrays() -> None:
        for name, array in whole.items():
            np.save(root / name, array.view(np.uint16))

    def as_safetensors() -> None:
        arrays = {name: np.concatenate(rows) for name, rows in values.items()}
        for array in arrays.values():
            hashlib.sha256(array.view(np.uint8).data).hexdigest()
        store.create("shard", save(arrays))

    parts: dict[str, Callable[[], Any]] = {
        "sha256": lambda: hashlib.sha256(raw).digest(),
        "write": lambda: store.create("shard", raw),
        "pack and create": lambda: store.create("shard", pack(about, content.tensors())),
        "concatenate, sha256, safetensors.save, create": as_safetensors,
        "safetensors.save_file": lambda: save_file(whole, root / "shard"),
        "numpy.save": save_arrays,
    }
    size_gb = sum(array.nbytes for array in whole.values()) / 1e9
    cpu_s: dict[str, list[float]] = {name: [] for name in parts}
    try:
        for number in range(rounds + 1):
            for name, run in parts.items():
                begun = time.process_time()
                run()
                took_s = time.process_time() - begun
                store.delete("shard")
                if number:
                    cpu_s[name].append(took_s / size_gb)
            print(f"E9 {number}: {[several[-1:] for several in cpu_s.values()]}", file=sys.stderr)
    finally:
        shutil.rmtree(root)
    return {
        "goals": {"E9": GOAL},
        "shard_bytes": len(raw),
        "cpu_s_per_gb": {name: spread(several) for name, several in cpu_s.items()},
        "on": described(["numpy", "safetensors"]),
    }
