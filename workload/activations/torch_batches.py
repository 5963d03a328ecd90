"""`batches` for torch, which the caller has installed:

from torch.utils.data import DataLoader
from workload.activations.torch_batches import Batches

epoch = Batches("gs://my-project-checkpoints/extractions/qwen2.5-0.5b", "resid_post.12", 4096, seed=1)
for values_BxD in DataLoader(epoch, batch_size=None, num_workers=4): ...    # bfloat16, each token once
"""

from collections.abc import Iterator

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from torch.utils.data import (  # type: ignore[import-not-found,unused-ignore]
    IterableDataset,
    get_worker_info,
)

from workload.activations.batches import batches
from workload.activations.reader import Activations


class Batches(IterableDataset):  # type: ignore[misc,unused-ignore]
    """An epoch, or a rank's part of it; a loader's workers share it out among them."""

    def __init__(self, url: str, point: str, size: int, seed: int = 0, rank: int = 0, ranks: int = 1):
        """Reads nothing yet: each worker opens the run for itself.

        Args:
            url: of the extraction.
            point: whose tensors.
            size: of a batch; each worker's last one holds what is left.
            seed: of the order; the number of the epoch will do.
            rank: of this process among those that share the epoch.
            ranks: how many do. Their numbers of batches may differ.
        """
        self._url, self._point, self._size, self._seed = url, point, size, seed
        self._rank, self._ranks = rank, ranks

    def __iter__(self) -> "Iterator[torch.Tensor]":
        mine = get_worker_info()
        worker, workers = (mine.id, mine.num_workers) if mine else (0, 1)
        part, parts = self._rank * workers + worker, self._ranks * workers
        read = Activations(self._url)
        for values in batches(read, self._point, self._size, self._seed, part=part, parts=parts):
            if values.dtype == np.float32:
                yield torch.from_numpy(values)
            else:  # torch knows NumPy's own dtypes alone: the same bits by way of one of them
                yield torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
