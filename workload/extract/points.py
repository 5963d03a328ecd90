"""Points to extract: `resid_post.12`, `mlp_out.*`, `attn_z.3.h5`, or `re:` and a regular expression."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from workload.errors import Problem
from workload.model.architecture import Architecture
from workload.model.points import END_POINTS, LAYER_POINTS


@dataclass(frozen=True, order=True)
class Wanted:
    """A tensor to keep.

    Attributes:
        layer: counted from 0; the number of layers for points after the last one.
        point: its name in `points.POINTS`.
        head: a single head of the point; None: the whole point.
    """

    layer: int
    point: str
    head: int | None = None

    @property
    def name(self) -> str:
        """Name in the config and in shards."""
        if self.point in END_POINTS:
            return self.point
        return f"{self.point}.{self.layer}" + ("" if self.head is None else f".h{self.head}")

    def shape(self, arch: Architecture) -> tuple[int, ...]:
        """Return the shape for one token."""
        letters = (LAYER_POINTS | END_POINTS)[self.point].split("x")[2:]
        if self.head is not None:
            letters = letters[1:]
        sizes = {"D": arch.d_model, "F": arch.d_ff, "H": arch.heads, "J": arch.J, "K": arch.K}
        return tuple(sizes[letter] for letter in letters)

    def size(self, arch: Architecture) -> int:
        """Return the numbers of one token."""
        return math.prod(self.shape(arch))


PATTERN = "re:"


def _split(words: Sequence[str]) -> list[str]:
    """Return single words: one may be several with commas between, unless it is a pattern."""
    return [part for word in words for part in ([word] if word.startswith(PATTERN) else word.split(","))]


def unknown(words: Sequence[str], layers: int = 0) -> list[Problem]:
    """Return the problems of words that no model has points for; `layers`: of the model, 0: unknown."""
    problems = []
    if not words:
        problems.append(_problem("[]", "is empty", 'name points to keep, e.g. ["resid_post.*"]'))
    for word in _split(words):
        point, *rest = word.split(".")
        if word.startswith(PATTERN):
            try:
                re.compile(word.removeprefix(PATTERN))
            except re.error as error:
                fix = rf"e.g. {PATTERN}resid_(pre|post)\.[0-3]"
                problems.append(_problem(word, f"is not a regular expression: {error}", fix))
        elif point not in LAYER_POINTS and (point not in END_POINTS or rest):
            nearest = difflib.get_close_matches(point, [*LAYER_POINTS, *END_POINTS], n=3, cutoff=0.4)
            known = {"*", *map(str, range(layers))}
            layer = rest[0] if rest and rest[0] in known else (layers - 1 if layers else "*")
            names = nearest or [*LAYER_POINTS, *END_POINTS]
            listed = ", ".join(name if name in END_POINTS else f"{name}.{layer}" for name in names)
            problems.append(_problem(word, "names no point of the model", f"one of {listed}"))
    return problems


def parse(words: Sequence[str], arch: Architecture) -> tuple[list[Wanted], list[Problem]]:
    """Return the tensors that some words select, in the order of the computation, and the words' problems."""
    selected: set[Wanted] = set()
    problems = unknown(words, arch.layers)
    wrong = {problem.value for problem in problems}
    for word in _split(words):
        if word in wrong:
            continue
        point, *rest = word.split(".")
        if word.startswith(PATTERN):
            desired, problem = _matching(word, arch)
            selected |= desired
            problems += [problem] if problem else []
        elif point in END_POINTS:
            selected.add(Wanted(arch.layers, point))
        else:
            desired, problem = _of_layer(word, point, rest, arch)
            selected |= desired
            problems += [problem] if problem else []
    order = [*LAYER_POINTS, *END_POINTS]
    return sorted(selected, key=lambda w: (w.layer, order.index(w.point), w.head or 0)), problems


def _matching(word: str, arch: Architecture) -> tuple[set[Wanted], Problem | None]:
    """Return the points whose whole names match; single heads only where no whole point does."""
    pattern = re.compile(word.removeprefix(PATTERN))
    whole = [Wanted(n, point) for n in range(arch.layers) for point in LAYER_POINTS]
    whole += [Wanted(arch.layers, point) for point in END_POINTS]
    heads = [
        Wanted(wanted.layer, wanted.point, head)
        for wanted in whole
        for head in range(_heads(wanted.point, arch))
    ]
    for several in (whole, heads):
        if matching := {wanted for wanted in several if pattern.fullmatch(wanted.name)}:
            return matching, None
    fix = f"whole names match: {whole[0].name} to {whole[-1].name}; e.g. {PATTERN}resid_.*"
    return set(), _problem(word, "matches no point of the model", fix)


def _heads(point: str, arch: Architecture) -> int:
    """Return a point's number of heads; 0 if it has none."""
    shape = (LAYER_POINTS | END_POINTS)[point].split("x")
    return {"H": arch.heads, "J": arch.J}.get(shape[2], 0)


def _of_layer(
    word: str, point: str, rest: list[str], arch: Architecture
) -> tuple[set[Wanted], Problem | None]:
    layer, *more = rest or [""]
    if layer == "*":
        layers = range(arch.layers)
    elif layer.isdecimal() and int(layer) < arch.layers:
        layers = range(int(layer), int(layer) + 1)
    else:
        rule = f"the model has layers 0 to {arch.layers - 1}"
        return set(), _problem(word, rule, f"e.g. {point}.{arch.layers - 1}, or {point}.* for all")
    if not more:
        return {Wanted(n, point) for n in layers}, None
    if not (heads := _heads(point, arch)):
        with_heads = [name for name in LAYER_POINTS if _heads(name, arch)]
        return set(), _problem(word, f"{point} has no heads", f"those of {', '.join(with_heads)} have")
    head = more[0].removeprefix("h")
    if len(more) > 1 or more[0][:1] != "h" or not (head == "*" or (head.isdecimal() and int(head) < heads)):
        rule = f"{point} has heads h0 to h{heads - 1}"
        return set(), _problem(
            word, rule, f"e.g. {point}.{layer}.h{heads - 1}, or {point}.{layer}.h* for each"
        )
    numbers = range(heads) if head == "*" else [int(head)]
    return {Wanted(n, point, number) for n in layers for number in numbers}, None


def _problem(word: str, rule: str, fix: str) -> Problem:
    return Problem("extract.points", word, rule, fix)
