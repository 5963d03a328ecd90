"""Loader of a step's examples onto the devices, with read-ahead in a thread."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from workload.data.order import Order
from workload.data.tokens import Dataset

_AHEAD = 2  # steps; one is being copied while the next is read


class Loader:
    """Batches of a run, each a function of seed and step alone.

    Each worker reads the rows of its own devices only.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, sharding: Any):
        self._dataset, self._batch_size, self._sharding = dataset, batch_size, sharding
        self._order = Order(len(dataset), seed)
        self._shape = (batch_size, dataset.sequence_length + 1)
        self._thread = ThreadPoolExecutor(1, "loader")
        self._coming: dict[int, Future[dict[Any, tuple[NDArray[np.int32], NDArray[np.int32]]]]] = {}

    def batch(self, step: int) -> dict[str, Array]:
        """Return tokens_BxL1 and segments_BxL1 of step 1, 2, …, on the devices."""
        for ahead in range(step, step + 1 + _AHEAD):
            if ahead not in self._coming:
                self._coming[ahead] = self._thread.submit(self._read, ahead)
        rows = self._coming.pop(step).result()

        def placed(part: int) -> Array:
            return jax.make_array_from_callback(
                self._shape, self._sharding, lambda index: rows[_rows(index, self._batch_size)][part]
            )

        return {"tokens_BxL1": placed(0), "segments_BxL1": placed(1)}

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, step: int) -> dict[Any, tuple[NDArray[np.int32], NDArray[np.int32]]]:
        first = (step - 1) * self._batch_size
        read = {}
        for index in self._sharding.addressable_devices_indices_map(self._shape).values():
            low, high = key = _rows(index, self._batch_size)
            if key not in read:
                tokens = self._dataset.read(self._order.at(range(first + low, first + high)))
                read[key] = tokens, self._dataset.segments(tokens)
        return read


def _rows(index: Any, batch_size: int) -> tuple[int, int]:
    low, high, _ = index[0].indices(batch_size)
    return low, high
