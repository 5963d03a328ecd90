"""`batches` for torch, if installed.

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
    """An epoch, or a rank's part of it, which a loader's workers share among them."""

    def __init__(self, url: str, point: str, size: int, seed: int = 0, rank: int = 0, ranks: int = 1):
        """Read nothing yet: each worker opens the run for itself.

        Args:
            url: of the extraction.
            point: the tensors to read.
            size: of a batch; each worker's last one may be smaller.
            seed: of the order, such as the epoch's number.
            rank: of this process among those that share the epoch.
            ranks: number of those. Their numbers of batches may differ.
        """
        self._url, self._point, self._size, self._seed = url, point, size, seed
        self._rank, self._ranks = rank, ranks

    def __iter__(self) -> "Iterator[torch.Tensor]":
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        part, parts = self._rank * workers + worker, self._ranks * workers
        read = Activations(self._url)
        for values in batches(read, self._point, self._size, self._seed, part=part, parts=parts):
            if values.dtype == np.float32:
                yield torch.from_numpy(values)
            else:  # torch lacks ml_dtypes: pass the bits as int16
                yield torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
