"""Order of the examples: a pure function of seed and slot.

Slot s is the s-th example that the run consumes; step t of a run with batch B takes slots
(t-1)B to tB. Each epoch is a permutation of its own, drawn by a four-round Feistel network
with cycle walking: no table in memory, no state to save, any slot in constant time.
"""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 4
_MASK64 = (1 << 64) - 1

UInts = NDArray[np.uint64]


class Order:
    """An endless sequence of examples, each epoch in an order of its own."""

    def __init__(self, examples: int, seed: int):
        if examples < 1:
            raise ValueError(f"examples must be at least 1, not {examples}")
        self.examples = examples
        self.seed = seed
        # Two halves of equal width whose product covers the examples; at most 4x too large.
        self._half_bits = max(1, ((examples - 1).bit_length() + 1) // 2)

    def at(self, slots: range) -> NDArray[np.int64]:
        """Return the examples of some slots, in slot order."""
        slots_S = np.arange(slots.start, slots.stop, slots.step, dtype=np.int64)
        epochs_S, places_S = np.divmod(slots_S, self.examples)
        examples_S = np.empty_like(slots_S)
        for epoch in np.unique(epochs_S):
            in_epoch = epochs_S == epoch
            examples_S[in_epoch] = self._permute(places_S[in_epoch].astype(np.uint64), int(epoch)).astype(
                np.int64
            )
        return examples_S

    def _permute(self, places: UInts, epoch: int) -> UInts:
        """Walk each place's cycle until it is inside [0, examples) again."""
        keys = [_mix(_mix(_mix(self.seed) ^ epoch) ^ i) for i in range(_ROUNDS)]
        walked = self._feistel(places, keys)
        while (outside := walked >= self.examples).any():
            walked[outside] = self._feistel(walked[outside], keys)
        return walked

    def _feistel(self, values: UInts, keys: list[int]) -> UInts:
        bits, mask = np.uint64(self._half_bits), np.uint64((1 << self._half_bits) - 1)
        left, right = values >> bits, values & mask
        for key in keys:
            left, right = right, left ^ (_mix_array(right ^ np.uint64(key)) & mask)
        return (left << bits) | right


def _mix(value: int) -> int:
    """Apply the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _mix_array(values: UInts) -> UInts:
    """`_mix`, element by element; overflow wraps."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
