"""Augmentations of an ARC task: its grids turned and mirrored, its colours permuted, its pairs reordered.

An augmentation is drawn from hashes of its name, so it is the same on any machine, in any process
and any order, and independent of Python's random generators.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

Grid = list[list[int]]  # rows of colours
COLOURS = 10
_BLACK_MOVES = 10  # 1 in 10: black is the background of most tasks


@dataclass(frozen=True)
class Augmentation:
    """An augmentation; each part can be undone.

    Attributes:
        symmetry: of the square: quarter turns to the right, plus 4 if mirrored before.
        colours: new colour by old colour.
        order: of the training pairs: indices of the first, second and so on.
    """

    symmetry: int
    colours: tuple[int, ...]
    order: tuple[int, ...]

    def apply(self, grid: Grid) -> Grid:
        """Return the augmented grid."""
        grid = [[self.colours[cell] for cell in row] for row in grid]
        return _turned(_mirrored(grid) if self.symmetry >= 4 else grid, self.symmetry % 4)

    def undo(self, grid: Grid) -> Grid:
        """Invert `apply`: `undo(apply(grid))` is `grid`. Corrects a model's answer."""
        grid = _turned(grid, -self.symmetry % 4)
        was = [self.colours.index(colour) for colour in range(COLOURS)]
        return [[was[cell] for cell in row] for row in (_mirrored(grid) if self.symmetry >= 4 else grid)]


def draw(seed: int, task: str, test: int, number: int, pairs: int) -> Augmentation:
    """Draw augmentation `number` for a test input of a task with `pairs` training pairs.

    Eight consecutive numbers have the eight symmetries of the square, each once.
    """
    symmetry = (_hash(seed, task, test, "symmetry") + number) % 8
    name = (seed, task, test, number)
    first = 0 if _hash(*name, "black") % _BLACK_MOVES == 0 else 1
    colours = (*range(first), *_shuffled(range(first, COLOURS), *name, "colours"))
    return Augmentation(symmetry, colours, _shuffled(range(pairs), *name, "order"))


def _shuffled(numbers: Sequence[int], *name: str | int) -> tuple[int, ...]:
    """Permute the numbers; each order is equally likely over names."""
    return tuple(sorted(numbers, key=lambda number: _hash(*name, number)))


def _hash(*name: str | int) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(name).encode()).digest(), "big")


def _turned(grid: Grid, quarters: int) -> Grid:
    for _ in range(quarters):
        grid = [list(column) for column in zip(*reversed(grid), strict=True)]
    return grid


def _mirrored(grid: Grid) -> Grid:
    return [row[::-1] for row in grid]
