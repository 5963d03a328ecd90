"""Reads an epoch of an extraction through torch's DataLoader, and writes down what came.

    PYTHON_OF_PARITY tests/parity/batches.py SEARCH URL POINT SIZE WORKERS OUT

SEARCH is where the workload and what it needs lie, after this environment's own packages. OUT is an
.npz: `values`, the batches' bits as int16 or float32; `sizes`; `dtype`, torch's name for it.
"""

import sys

import numpy as np
import torch
from torch.utils.data import DataLoader

sys.path += sys.argv.pop(1).split(":")
from workload.activations.torch_batches import Batches


def main(url: str, point: str, size: int, workers: int, out: str) -> None:
    """All ranks of two, one after another."""
    result = []
    for rank in range(2):
        epoch = Batches(url, point, size, seed=3, rank=rank, ranks=2)
        result += list(DataLoader(epoch, batch_size=None, num_workers=workers))
    kinds = {str(batch.dtype) for batch in result}
    bits = [batch.view(torch.int16) if batch.dtype == torch.bfloat16 else batch for batch in result]
    values = np.concatenate([batch.numpy() for batch in bits])
    np.savez(out, values=values, sizes=[len(batch) for batch in result], dtype=" ".join(kinds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
