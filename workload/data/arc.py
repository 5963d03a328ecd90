"""Prompts of ARC-AGI tasks: pairs of grids that follow a rule, and a grid to apply it to.

    workload data streams --source training/ --arc --tokenizer Qwen2.5-0.5B/ --streams 8 --out streams/

A task is `{"train": [{"input": GRID, "output": GRID}, ...], "test": [{"input": GRID}, ...]}`, a grid a list
of rows of colours from 0 to 9 (github.com/fchollet/ARC-AGI). Each test input makes a prompt for each
augmentation, named `task/test/aug_number`; a prompt is a function of task, name and seed alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.data.augment import COLOURS, Augmentation, Grid, draw
from workload.data.sources import (
    LINES,
    UNREADABLE,
    Sample,
    Sources,
    lines,
    name_of,
    opened,
    parsed,
    suffix,
    unreadable,
)

_LARGEST = 30  # rows and columns of a grid
_FIX = "mend it, or leave it out"
_RULE = "Each example is a pair of grids: one rule turns every input into its output. A digit is a colour."
_ASK = "Which output does the rule make of this input?"


@dataclass(frozen=True)
class Tasks:
    """Files and folders of tasks.

    A `.json` file holds one task and names it by its own name, or many by name, as Kaggle's
    challenges do; a `.jsonl` file one a line. Solutions aren't read: no prompt shows them.

    Attributes:
        paths: files and folders; a folder's files come in the order of their paths.
        augmentations: of each test input; 0 for the unchanged task, named `task/test`.
        seed: of the augmentations.
        id_field: of a line, the name of the task.
    """

    paths: Sequence[Path]
    augmentations: int = 8
    seed: int = 0
    id_field: str = "task_id"

    @property
    def decides(self) -> list[Any]:
        """See `Reading.decides`."""
        return ["arc", self.augmentations, self.seed, self.id_field]

    def files(self) -> list[Path]:
        """Return every file, in order; DataError if one is missing."""
        return Sources(self.paths).files()

    def samples(self) -> Iterator[Sample]:
        """Yield the prompts of every task, and invalid tasks with their problem.

        Raises:
            DataError: a file can't be read.
        """
        for path in self.files():
            try:
                for where, name, task, problem in self._tasks(path):
                    if problem := problem or _problem(task):
                        yield Sample(f"{where}: {name}" if name else where, problem=problem, fix=_FIX)
                    else:
                        yield from self._prompts(where, name, task)
            except UNREADABLE as error:
                raise unreadable(path, error) from None

    def _tasks(self, path: Path) -> Iterator[tuple[str, str, Any, str]]:
        """Yield each task's place, its name, itself, and its problem."""
        if suffix(path) in LINES:
            for where, task, problem in lines(path):
                name = name_of(task.get(self.id_field)) if isinstance(task, dict) else ""
                nameless = "" if name else f"has no {self.id_field!r} to name it"
                yield where, name, task, problem or nameless
            return
        with opened(path) as file:
            content, problem = parsed(file.read())
        if problem:
            yield str(path), "", content, problem
        elif _is_task(content):
            yield str(path), path.name.partition(".json")[0], content, ""
        elif not isinstance(content, dict) or not content:
            yield str(path), "", content, "is no ARC task, and no object of tasks"
        elif all(isinstance(task, list) for task in content.values()):
            yield str(path), "", content, "holds no tasks: solutions, which no prompt shows"
        else:
            for name, task in content.items():
                nameless = "" if name_of(name) else f"has a name that can't be printed: {name!r}"
                yield str(path), name_of(name), task, nameless

    def _prompts(self, where: str, name: str, task: dict[str, Any]) -> Iterator[Sample]:
        as_it_is = Augmentation(0, tuple(range(COLOURS)), tuple(range(len(task["train"]))))
        for test in range(len(task["test"])):
            looks = {f"{name}/{test}": as_it_is} if not self.augmentations else {}
            for number in range(self.augmentations):
                look = draw(self.seed, name, test, number, len(task["train"]))
                looks[f"{name}/{test}/aug_{number}"] = look
            for named, look in looks.items():
                yield Sample(f"{where}: {named}", prompt(task, test, look), named)


def prompt(task: dict[str, Any], test: int, look: Augmentation) -> str:
    """Return the task as text, up to the begin of the answer; a grid's rows are lines of digits."""

    def shown(grid: Grid) -> str:
        return "\n".join("".join(map(str, row)) for row in look.apply(grid))

    parts = [_RULE]
    for number, pair in enumerate((task["train"][index] for index in look.order), 1):
        parts += [f"Example {number}", f"Input:\n{shown(pair['input'])}", f"Output:\n{shown(pair['output'])}"]
    parts += [_ASK, f"Input:\n{shown(task['test'][test]['input'])}", "Output:\n"]
    return "\n\n".join(parts)


def _is_task(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("train", content.get("test")), list)


def _problem(task: Any) -> str:
    """Return the reason if this isn't a task; else empty."""
    for part, grids in (("train", ("input", "output")), ("test", ("input",))):
        pairs = task.get(part) if isinstance(task, dict) else None
        if not isinstance(pairs, list) or not pairs:
            return f"is no ARC task: has no {part} pairs"
        for number, pair in enumerate(pairs):
            for role in grids:
                grid = pair.get(role) if isinstance(pair, dict) else None
                if problem := _wrong(grid):
                    return f"is no ARC task: {role} of {part} {number} {problem}"
    return ""


def _wrong(grid: Any) -> str:
    """Return the reason if this isn't a grid; else empty."""
    if not isinstance(grid, list) or not all(isinstance(row, list) for row in grid):
        return "is missing" if grid is None else "is no list of rows"
    if not 1 <= len(grid) <= _LARGEST:
        return f"has {len(grid)} rows, not 1 to {_LARGEST}"
    for number, row in enumerate(grid):
        if len(row) != len(grid[0]):
            return f"is ragged: row {number} has {len(row)} cells, row 0 has {len(grid[0])}"
        if not 1 <= len(row) <= _LARGEST:
            return f"has {len(row)} columns, not 1 to {_LARGEST}"
        if odd := [cell for cell in row if type(cell) is not int or not 0 <= cell < COLOURS]:
            cell = odd[0] if type(odd[0]) is int else f"a {type(odd[0]).__name__}"
            return f"has {cell} in row {number}, not a colour from 0 to {COLOURS - 1}"
    return ""
