"""Mergeable mean and variance: of chips into a batch, batches into a shard, shards into a run.

Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample
variances", formula 2.1. Each token's tensor is a sample, each of its numbers a variable of its own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Mean of `count` tensors of one shape, and the sum of squared deviations from it."""

    count: int
    mean: Floats
    deviations: Floats

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Moments":
        """Return the moments of zero tensors."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    def __add__(self, right: "Moments") -> "Moments":
        """Merge the moments of two disjoint sets."""
        count = self.count + right.count
        if not right.count:
            return self
        delta = right.mean - self.mean
        mean = self.mean + delta * (right.count / count)
        deviations = self.deviations + right.deviations + delta**2 * (self.count * right.count / count)
        return Moments(count, mean, deviations)

    @property
    def variance(self) -> Floats:
        """Population variance: divided by `count`."""
        return self.deviations / max(self.count, 1)

    @property
    def rms_norm(self) -> float:
        """Root mean square of the norms of the tensors."""
        return float(np.sqrt((self.mean**2 + self.variance).sum()))
