"""Other looks of an ARC task: its grids turned and mirrored, its colours swapped, its pairs in another order.

An augmentation is drawn from hashes of its name, so that it is the same on any machine, in any
process and any order, and needs no generator whose algorithm a new Python may change.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

Grid = list[list[int]]  # rows of colours
COLOURS = 10
_BLACK_MOVES = 10  # once in so many: black is the background of most tasks


@dataclass(frozen=True)
class Augmentation:
    """A task's other look; each part can be undone.

    Attributes:
        symmetry: of the square: its quarter turns to the right, and 4 more where mirrored before.
        colours: what each becomes, by number.
        order: of the training pairs: which come first, second and so on.
    """

    symmetry: int
    colours: tuple[int, ...]
    order: tuple[int, ...]

    def apply(self, grid: Grid) -> Grid:
        """The grid as it looks then."""
        grid = [[self.colours[cell] for cell in row] for row in grid]
        return _turned(_mirrored(grid) if self.symmetry >= 4 else grid, self.symmetry % 4)

    def undo(self, grid: Grid) -> Grid:
        """The grid that looks so: `undo(apply(grid))` is `grid`, and so a model's answer is put right."""
        grid = _turned(grid, -self.symmetry % 4)
        was = [self.colours.index(colour) for colour in range(COLOURS)]
        return [[was[cell] for cell in row] for row in (_mirrored(grid) if self.symmetry >= 4 else grid)]


def drawn(seed: int, task: str, test: int, number: int, pairs: int) -> Augmentation:
    """The augmentation of that number for one test input of a task with so many training pairs.

    Eight numbers in a row have the eight symmetries of the square, each once.
    """
    symmetry = (_hash(seed, task, test, "symmetry") + number) % 8
    name = (seed, task, test, number)
    first = 0 if _hash(*name, "black") % _BLACK_MOVES == 0 else 1
    colours = (*range(first), *_shuffled(range(first, COLOURS), *name, "colours"))
    return Augmentation(symmetry, colours, _shuffled(range(pairs), *name, "order"))


def _shuffled(numbers: Sequence[int], *name: str | int) -> tuple[int, ...]:
    """The numbers in an order of that name: each order as likely as any other."""
    return tuple(sorted(numbers, key=lambda number: _hash(*name, number)))


def _hash(*name: str | int) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(name).encode()).digest(), "big")


def _turned(grid: Grid, quarters: int) -> Grid:
    for _ in range(quarters):
        grid = [list(column) for column in zip(*reversed(grid), strict=True)]
    return grid


def _mirrored(grid: Grid) -> Grid:
    return [row[::-1] for row in grid]
