"""Loader of a step's examples onto the devices, with read-ahead in a thread."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
from jax import Array

from workload.data.tokens import PARTS, Examples, Rows

_AHEAD = 2  # steps; one is being copied while the next is read


class Loader:
    """Batches of a run, each a function of seed and step alone.

    Each worker reads the rows of its own devices only.
    """

    def __init__(
        self, dataset: Examples, batch_size: int, seed: int, sharding: Any, parts: Sequence[str] = PARTS[:2]
    ):
        """Create it.

        Args:
            dataset: to read from.
            batch_size: examples a step.
            seed: of their order.
            sharding: of a batch.
            parts: of PARTS, those that the step takes.
        """
        self._dataset, self._batch_size, self._seed = dataset, batch_size, seed
        self._sharding, self._parts = sharding, parts
        self._shape = (batch_size, dataset.sequence_length + 1)
        self._thread = ThreadPoolExecutor(1, "loader")
        self._coming: dict[int, Future[dict[Any, Rows]]] = {}

    def batch(self, step: int) -> dict[str, Array]:
        """Return the parts of step 1, 2, …, on the devices."""
        for ahead in range(step, step + 1 + _AHEAD):
            if ahead not in self._coming:
                self._coming[ahead] = self._thread.submit(self._read, ahead)
        rows = self._coming.pop(step).result()

        def placed(part: str) -> Array:
            return jax.make_array_from_callback(
                self._shape, self._sharding, lambda index: rows[_rows(index, self._batch_size)][part]
            )

        return {part: placed(part) for part in self._parts}

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, step: int) -> dict[Any, Rows]:
        first = (step - 1) * self._batch_size
        read: dict[Any, Rows] = {}
        for index in self._sharding.addressable_devices_indices_map(self._shape).values():
            low, high = key = _rows(index, self._batch_size)
            if key not in read:
                read[key] = self._dataset.at(range(first + low, first + high), self._seed)
        return read


def _rows(index: Any, batch_size: int) -> tuple[int, int]:
    low, high, _ = index[0].indices(batch_size)
    return low, high
