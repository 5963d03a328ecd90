"""Mean and variance that merge: of chips into a batch, of batches into a shard, of shards into a run.

Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample
variances", formula 2.1. Each token's tensor is a sample, each of its numbers a variable of its own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Of `count` tensors of one shape: their mean and the sum of squared deviations from it."""

    count: int
    mean: Floats
    deviations: Floats

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Moments":
        """Of no tensor yet."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    def __add__(self, other: "Moments") -> "Moments":
        """Of both together."""
        count = self.count + other.count
        if not other.count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        deviations = self.deviations + other.deviations + apart**2 * (self.count * other.count / count)
        return Moments(count, mean, deviations)

    @property
    def variance(self) -> Floats:
        """Of the population: divided by `count`."""
        return self.deviations / max(self.count, 1)
