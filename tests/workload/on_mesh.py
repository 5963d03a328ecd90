"""Reads an epoch of an extraction onto eight devices and writes down what came, and where.

python -m tests.workload.on_mesh URL POINT SIZE OUT
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from workload.activations.jax_batches import on_mesh
from workload.activations.reader import Activations


def main(url: str, point: str, size: int, out: Path) -> None:
    """Over four parts of the data, two copies each."""
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"))
    result = list(on_mesh(Activations(url), point, size, mesh, seed=3))
    first, step = result[0], jax.jit(lambda values: values.sum())
    for batch in result:
        step(batch)
    about = {
        "dtypes": sorted({str(batch.dtype) for batch in result}),
        "devices": len(first.sharding.device_set),
        "shapes": sorted({shard.data.shape for shard in first.addressable_shards}),
        "compiled": step._cache_size(),
    }
    out.with_suffix(".json").write_text(json.dumps(about))
    np.save(out, np.concatenate([np.asarray(batch).view(np.int16) for batch in result]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
