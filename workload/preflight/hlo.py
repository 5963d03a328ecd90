"""Analysis of a compiled program: computations, loops and matrix products; `schedule.py` has its collectives.

The text is XLA's, after all optimizations. XLA's own cost analysis counts the body of a loop
once (jax-ml/jax issue 18672); here every count is multiplied by the loops around it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from workload.errors import WorkloadError

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_NAME = re.compile(r"%([\w.\-]+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_KERNEL = 'custom_call_target="tpu_custom_call"'
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}


@dataclass
class Instruction:
    """Instruction of a computation.

    Attributes:
        name: in the program's text.
        shape: of its result.
        opcode: its kind.
        rest: the text after its opening parenthesis.
        flops: if it is a matrix product; kernels have none.
    """

    name: str
    shape: str
    opcode: str
    rest: str
    flops: float = 0.0


@dataclass
class Computation:
    """Instructions in the order of their schedule."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)


class HloProgram:
    """Computations of a program and their numbers of runs in a step."""

    def __init__(self, text: str, slices: int = 1):
        self.slices = slices
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        current: Computation | None = None
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                current = self.computations[match[1]] = Computation(match[1])
                self.entry = match[1] if line.startswith("ENTRY") else self.entry
            elif current and (match := _INSTRUCTION.match(line)):
                name, shape, opcode, rest = match.groups()
                current.instructions.append(Instruction(name, shape, opcode, rest))
        for computation in self.computations.values():
            shapes = {instruction.name: instruction.shape for instruction in computation.instructions}
            for instruction in computation.instructions:
                if flops := _FLOPS.get(instruction.opcode):
                    instruction.flops = flops(instruction, shapes)
        self.times: dict[str, int] = dict.fromkeys(self.computations, 0)
        self._count(self.entry, 1)

    def _count(self, name: str, times: int) -> None:
        self.times[name] += times
        for instruction in self.computations[name].instructions:
            trips = self.trips(instruction)
            for target in self.targets(instruction):
                self._count(target, times * trips)

    def targets(self, instruction: Instruction) -> list[str]:
        """Return the computations that an instruction runs: its body, its function, its branches."""
        roles = called(instruction.rest)
        targets = [
            target for role, target in roles.items() if role != "condition" and target in self.computations
        ]
        if branches := _BRANCHES.search(instruction.rest):
            targets += branches[1].replace("%", "").replace(" ", "").split(",")
        return targets

    def trips(self, loop: Instruction) -> int:
        """Return the trip count of a loop: the compiler's, or the bound in its condition; 1 of others."""
        condition = called(loop.rest).get("condition")
        if condition is None:
            return 1
        if known := _KNOWN_TRIPS.search(loop.rest):
            return int(known[1])
        bounds = [0]
        for instruction in self._within(condition):
            if instruction.opcode == "constant" and instruction.shape.startswith("s32[]"):
                bounds.append(int(instruction.rest.split(")")[0]))
        return max(1, *bounds)

    def _within(self, name: str) -> Iterator[Instruction]:
        for instruction in self.computations[name].instructions:
            yield instruction
            for _, target in _CALLED.findall(instruction.rest):
                if target in self.computations:
                    yield from self._within(target)

    def loops(self) -> list[int]:
        """Return the trip counts of all loops, largest first."""
        loops = [
            self.trips(instruction)
            for computation in self.computations.values()
            for instruction in computation.instructions
            if instruction.opcode == "while"
        ]
        return sorted(loops, reverse=True)

    def matmul_flops(self) -> float:
        """Sum the FLOPs of every `dot` and, in programs for TPUs, `convolution` of a step."""
        return sum(
            self.times[name] * instruction.flops
            for name, computation in self.computations.items()
            for instruction in computation.instructions
        )

    def products(self, instruction: Instruction) -> float:
        """Sum the FLOPs of an instruction and of all that a run of it runs."""
        return instruction.flops + self.trips(instruction) * sum(
            self.products(inner)
            for target in self.targets(instruction)
            for inner in self.computations[target].instructions
        )

    def kernels(self) -> dict[str, int]:
        """Count the runs of every kernel in a step, by its name without the compiler's number."""
        runs: Counter[str] = Counter()
        for name, computation in self.computations.items():
            for instruction in computation.instructions:
                if instruction.opcode == "custom-call" and _KERNEL in instruction.rest:
                    runs[instruction.name.partition(".")[0]] += self.times[name]
        return dict(runs)


def called(rest: str) -> dict[str, str]:
    """Return the computations that an instruction names, by role."""
    return dict(_CALLED.findall(rest))


def arrays(shape: str) -> list[str]:
    """Return the arrays of a tuple's shape."""
    return [f"{dtype}[{dims}]" for dtype, dims in _ARRAY.findall(shape)]


def size(shape: str) -> int:
    """Return the bytes of an array or of all arrays of a tuple."""
    return sum(_width(dtype) * prod(_dims(dims)) for dtype, dims in _ARRAY.findall(shape))


def _width(dtype: str) -> int:
    return _BYTES.get(dtype) or int(re.sub(r"\D", "", dtype) or 8) // 8


def _dims(text: str) -> list[int]:
    return [int(length) for length in text.split(",") if length]


def _dot_flops(dot: Instruction, shapes: dict[str, str]) -> float:
    operand = re.match(r"%?([\w.\-]+)", dot.rest)
    typed = _ARRAY.match(dot.rest)  # older formats repeat an operand's shape before its name
    left = dot.rest if typed else shapes[operand[1]] if operand else ""
    array = _ARRAY.search(left)
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", dot.rest)
    lengths = _dims(array[2]) if array else []
    inner = prod(lengths[axis] for axis in _dims(contracted[1])) if contracted else 1
    result = _ARRAY.search(dot.shape)
    return 2.0 * inner * prod(_dims(result[2])) if result else 0.0


def _convolution_flops(convolution: Instruction, shapes: dict[str, str]) -> float:
    """Count the products of a convolution, those with its padding and with the gaps of a dilation left out.

    The compiler writes a matrix product as a convolution. A contraction over several axes has a window as
    large as the array; an axis that both operands share has one that meets a single element.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", convolution.rest)
    arguments = convolution.rest.split("), ")[0]
    typed = [_dims(dims) for _, dims in _ARRAY.findall(arguments)]
    named = [
        _dims(array[2]) for name in _NAME.findall(arguments) if (array := _ARRAY.search(shapes.get(name, "")))
    ]
    result = _ARRAY.search(convolution.shape)
    if not (labels and result):
        raise WorkloadError(f"unknown format of a convolution: {convolution.rest[:120]}")
    left, right = (typed or named)[:2]
    lengths = dict(zip(labels[1], left, strict=True)), dict(zip(labels[3], _dims(result[2]), strict=True))
    inner = dict(zip(labels[2], right, strict=True))["i"]
    window = dict(part.split("=") for part in (_WINDOW.search(convolution.rest) or ["", ""])[1].split())
    products: float = 2.0 * lengths[1]["b"] * lengths[1]["f"] * inner
    for number, axis in enumerate(sorted(filter(str.isdigit, labels[1]))):
        at = {
            name: int(values.split("x")[number].split("_")[0])
            for name, values in window.items()
            if name != "rhs_reversal"
        }
        products *= _met(lengths[0][axis], lengths[1][axis], at)
    return products


def _met(length: int, places: int, window: dict[str, int]) -> int:
    """Count the elements that a window along an axis of some length meets at all of its places."""
    gap, first = window.get("lhs_dilate", 1), window.get("pad", 0)
    positions = (
        place * window.get("stride", 1) + offset * window.get("rhs_dilate", 1) - first
        for place in range(places)
        for offset in range(window.get("size", 1))
    )
    return sum(position % gap == 0 and 0 <= position // gap < length for position in positions)


_FLOPS = {"dot": _dot_flops, "convolution": _convolution_flops}


def groups_of(rest: str) -> list[list[int]]:
    """Parse the groups of devices: lists, an iota, or axes of a mesh; none if all devices participate.

    Raises:
        WorkloadError: the format is unknown.
    """
    if listed := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", rest):
        return [_dims(group) for group in re.findall(r"\{([\d,]*)\}", listed[1])]
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        return _grid(_dims(iota[3]), _dims(iota[4] or ""), int(iota[2]))
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", rest):  # since JAX 0.12
        lengths = {name: int(length) for name, length in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        names, along = list(lengths), re.findall(r"'(\w+)'", mesh[2])
        if mesh[2] == ",".join(f"'{name}'" for name in along):
            order = [names.index(name) for name in names if name not in along]
            order += [names.index(name) for name in along]
            return _grid(list(lengths.values()), order, prod(lengths[name] for name in along))
    if "replica_groups=" in rest:
        groups = rest[rest.index("replica_groups=") :][:120]
        raise WorkloadError(f"unknown format of a collective's groups: {groups}")
    return []


def _grid(lengths: list[int], order: list[int], size: int) -> list[list[int]]:
    """Return groups of a grid's devices, numbered along its axes and grouped in another order of axes."""
    import numpy as np

    grid = np.arange(prod(lengths)).reshape(lengths).transpose(order or None).reshape(-1, size)
    return [[int(device) for device in group] for group in grid]
