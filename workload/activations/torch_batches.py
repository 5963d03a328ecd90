"""`batches` for torch, if installed.

from torch.utils.data import DataLoader
from workload.activations.torch_batches import Batches

epoch = Batches("gs://my-project-checkpoints/extractions/qwen2.5-0.5b", "resid_post.12", 4096, seed=1)
for values_BxD in DataLoader(epoch, batch_size=None, num_workers=4): ...    # bfloat16, each token once
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from numpy.typing import NDArray
from torch.utils.data import (  # type: ignore[import-not-found,unused-ignore]
    IterableDataset,
    get_worker_info,
)

from workload.activations.batches import SHARDS_AT_ONCE, batches
from workload.activations.reader import Activations


class Batches(IterableDataset):  # type: ignore[misc,unused-ignore]
    """An epoch, or a rank's part of it, which a loader's workers share among them."""

    def __init__(
        self,
        url: str,
        tensors: str | Sequence[str],
        size: int,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        shards_at_once: int = SHARDS_AT_ONCE,
    ):
        """Read nothing yet: each worker opens the run for itself.

        Args:
            url: of the extraction.
            tensors: a point, or several of points, `tokens` and `positions`; see `batches`.
            size: of a batch; each worker's last one may be smaller.
            seed: of the order, such as the epoch's number.
            rank: of this process among those that share the epoch.
            ranks: number of those. Their numbers of batches may differ.
            shards_at_once: mixed with each other, by each worker; see `batches`.
        """
        self._url, self._tensors, self._size, self._seed = url, tensors, size, seed
        self._rank, self._ranks, self._shards_at_once = rank, ranks, shards_at_once

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        part, parts = self._rank * workers + worker, self._ranks * workers
        read = Activations(self._url)
        options = (self._size, self._seed, self._shards_at_once, part, parts)
        for batch in batches(read, self._tensors, *options, bits=True):
            yield tuple(map(_tensor, batch)) if isinstance(batch, tuple) else _tensor(batch)


def _tensor(array: NDArray[Any]) -> "torch.Tensor":
    """Return an array as a tensor in its memory; uint16 holds the bits of bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
