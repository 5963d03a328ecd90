"""Several sources of examples as one sequence, by their weights.

A source's share of the examples is its weight's of the sum, to 1/65,536. Slots come in cycles of 65,536, in
which each source's are spread evenly; its examples come in an order of its own. The example of a slot is a
function of seed and slot alone: there is no state to save.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workload.data.tokens import PARTS, Examples, Rows
from workload.errors import DataError

CYCLE = 2**16


class Mixture(Examples):
    """Weighted sources of one tokenizer."""

    def __init__(self, sources: Sequence[Examples], weights: Sequence[float]):
        """Mix them; see `shares`.

        Raises:
            DataError: two have different tokenizers.
        """
        first = sources[0]
        for source in sources:
            if source.manifest.tokenizer_sha256 != first.manifest.tokenizer_sha256:
                names = f"{source.manifest.tokenizer}, and {first.folder} by {first.manifest.tokenizer}"
                fix = "prepare them with one --tokenizer"
                raise DataError(f"data.sources: {source.folder} was made by {names}\n    fix: {fix}")
        self._sources, self._shares = sources, shares(weights)
        ids = json.dumps([[source.manifest.sha256 for source in sources], self._shares])
        self.folder, self.sequence_length = first.folder, first.sequence_length
        self.manifest = replace(first.manifest, sha256=hashlib.sha256(ids.encode()).hexdigest())
        # Of each slot of a cycle: its source, and the number of that source's slots before it.
        begins = np.concatenate([(np.arange(share) + 0.5) / share for share in self._shares])
        numbers = np.repeat(np.arange(len(sources)), self._shares)
        order = np.argsort(begins, kind="stable")
        self._source_of = numbers[order]
        self._before = np.concatenate([np.arange(share) for share in self._shares])[order]

    @property
    def marked(self) -> bool:
        """See `Examples.marked`."""
        return any(source.marked for source in self._sources)

    def __len__(self) -> int:
        return sum(map(len, self._sources))

    def at(self, slots: range, seed: int) -> Rows:
        """See `Examples.at`."""
        cycles, places = np.divmod(np.arange(slots.start, slots.stop), CYCLE)
        chosen = self._source_of[places]
        shape = (len(slots), self.sequence_length + 1)
        rows: Rows = {part: np.empty(shape, np.int32) for part in PARTS}
        for number, source in enumerate(self._sources):
            own = np.flatnonzero(chosen == number)
            if not len(own):
                continue
            # A source's slots within a range follow each other.
            first = int(cycles[own[0]]) * self._shares[number] + int(self._before[places[own[0]]])
            read = source.at(range(first, first + len(own)), seed + (number << 32))
            for part in PARTS:
                rows[part][own] = read[part]
        return rows


def shares(weights: Sequence[float]) -> list[int]:
    """Return each weight's slots of a cycle: rounded down, and the rest to the largest remainders."""
    exact = [weight / sum(weights) * CYCLE for weight in weights]
    slots = [int(share) for share in exact]
    largest = sorted(range(len(slots)), key=lambda n: (slots[n] - exact[n], n))
    for n in largest[: CYCLE - sum(slots)]:
        slots[n] += 1
    return slots
