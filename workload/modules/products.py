"""FLOPs of a traced program's products, its loops counted by their lengths.

XLA's own estimate counts a loop's body once. Of a kernel, and of a loop without a known length, the
inside counts once or not at all.
"""

import math
from collections.abc import Iterator
from typing import Any


def flops(jaxpr: Any) -> float:
    """Return the FLOPs of all products in a jaxpr and in those that it calls."""
    total = 0.0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        inside = sum(flops(called) for called in _called(equation.params.values()))
        total += _product(equation) + float(times) * inside
    return total


def _product(equation: Any) -> float:
    name = equation.primitive.name
    if name not in ("dot_general", "ragged_dot_general", "conv_general_dilated"):
        return 0.0
    shapes: list[tuple[int, ...]] = [variable.aval.shape for variable in equation.invars[:2]]
    left, right = shapes
    result = float(equation.outvars[0].aval.size)
    if name == "conv_general_dilated":
        features = right[equation.params["dimension_numbers"].rhs_spec[0]]
        return float(2 * result * math.prod(right) / features)
    numbers = equation.params.get("dimension_numbers")
    if name == "ragged_dot_general":
        numbers = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    (contracted, _), _ = numbers
    return float(2 * result * math.prod(left[axis] for axis in contracted))


def _called(values: Any) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            yield value
        elif isinstance(value, list | tuple):
            yield from _called(value)
