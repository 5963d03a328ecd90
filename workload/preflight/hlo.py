"""Analysis of a compiled program: loops, collectives and matrix products.

The text is XLA's, after all optimizations. XLA's own cost analysis counts the body of a loop
once (jax-ml/jax issue 18672); here every count is multiplied by the loops around it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from workload.errors import WorkloadError

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}

# A sum over slices: part of an array is sent to the runtime between them, which sends the sum back.
_BETWEEN_SLICES = '_xla_host_transfer_handler_name="xla_megascale_runtime"'
_WORK = ("fusion", "convolution", "dot", "custom-call", "while")
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Collective:
    """Collective in the program.

    Attributes:
        kind: in COLLECTIVES.
        name: of the instruction.
        size_bytes: of the whole gathered or summed array.
        group: number of participating devices; 0 if the text omits it.
        across: True if a group spans slices.
        times: number of runs in a step.
        hidden: True if computation continues meanwhile; else the chip waits.
    """

    kind: str
    name: str
    size_bytes: int
    group: int
    across: bool
    times: int
    hidden: bool = False


@dataclass
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str


@dataclass
class _Computation:
    name: str
    instructions: list[_Instruction] = field(default_factory=list)


class HloProgram:
    """Computations of a program and their numbers of runs in a step."""

    def __init__(self, text: str, slices: int = 1):
        self._slices = slices
        self._computations: dict[str, _Computation] = {}
        entry = ""
        current: _Computation | None = None
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                current = self._computations[match[1]] = _Computation(match[1])
                entry = match[1] if line.startswith("ENTRY") else entry
            elif current and (match := _INSTRUCTION.match(line)):
                current.instructions.append(_Instruction(*match.groups()))
        self.times: dict[str, int] = dict.fromkeys(self._computations, 0)
        self._count(entry, 1)

    def _count(self, name: str, times: int) -> None:
        self.times[name] += times
        for instruction in self._computations[name].instructions:
            called = dict(_CALLED.findall(instruction.rest))
            trips = self._trips(instruction, called.get("condition", "")) if "body" in called else 1
            for role, target in called.items():
                if target in self._computations and role != "condition":
                    self._count(target, times * trips)
            if branches := _BRANCHES.search(instruction.rest):
                for target in branches[1].replace("%", "").replace(" ", "").split(","):
                    self._count(target, times)

    def _trips(self, loop: _Instruction, condition: str) -> int:
        """Return the trip count of a loop: the compiler's, or the bound in its condition."""
        if known := _KNOWN_TRIPS.search(loop.rest):
            return int(known[1])
        bounds = [0]
        for instruction in self._within(condition):
            if instruction.opcode == "constant" and instruction.shape.startswith("s32[]"):
                bounds.append(int(instruction.rest.split(")")[0]))
        return max(1, *bounds)

    def _within(self, name: str) -> Iterator[_Instruction]:
        for instruction in self._computations[name].instructions:
            yield instruction
            for _, target in _CALLED.findall(instruction.rest):
                if target in self._computations:
                    yield from self._within(target)

    def loops(self) -> list[int]:
        """Return the trip counts of all loops, largest first."""
        trips = []
        for computation in self._computations.values():
            for instruction in computation.instructions:
                if instruction.opcode == "while":
                    called = dict(_CALLED.findall(instruction.rest))
                    trips.append(self._trips(instruction, called["condition"]))
        return sorted(trips, reverse=True)

    def collectives(self, devices_a_slice: int) -> list[Collective]:
        """List every collective that runs; parts of a split collective count as one."""
        collectives = []
        begun = self._begun()
        for name, computation in self._computations.items():
            if not self.times[name] or _is_later_part(computation):
                continue
            times, apart = self.times[name], name in begun or _is_first_part(computation)
            for instruction in computation.instructions:
                if instruction.opcode == "send" and _BETWEEN_SLICES in instruction.rest:
                    size = _size(_ARRAYS(instruction.shape)[0])
                    slices = self._slices
                    collectives.append(
                        Collective("all-reduce", instruction.name, size, slices, True, times, True)
                    )
                kind = instruction.opcode.removesuffix("-start")
                if kind not in COLLECTIVES:
                    continue
                groups = groups_of(instruction.rest)
                across = any(len({d // devices_a_slice for d in group}) > 1 for group in groups)
                size = _size(instruction.shape)
                if instruction.opcode.endswith("-start") and kind == "all-gather":
                    size = max(_size(part) for part in _ARRAYS(instruction.shape))
                if kind == "reduce-scatter":
                    size *= len(groups[0]) if groups else 1
                group = len(groups[0]) if groups else 0
                hidden = apart or instruction.name in begun
                collectives.append(Collective(kind, instruction.name, size, group, across, times, hidden))
        return collectives

    def _begun(self) -> set[str]:
        """Return the names of collectives and computations that run concurrently, e.g. on SparseCores."""
        names = set()
        for computation in self._computations.values():
            for number, start in enumerate(computation.instructions):
                if start.opcode.endswith("-start") and _works_until_done(
                    start, computation.instructions[number + 1 :]
                ):
                    names |= {start.name, *(target for _, target in _CALLED.findall(start.rest))}
        return names

    def matmul_flops(self) -> float:
        """Sum the FLOPs of every `dot`; programs for TPUs have convolutions instead."""
        total = 0.0
        for name, computation in self._computations.items():
            shapes = {instruction.name: instruction.shape for instruction in computation.instructions}
            for instruction in computation.instructions:
                if instruction.opcode == "dot":
                    total += self.times[name] * _dot_flops(instruction, shapes)
        return total


def _ARRAYS(shape: str) -> list[str]:  # noqa: N802
    return [f"{dtype}[{dims}]" for dtype, dims in _ARRAY.findall(shape)]


def _size(shape: str) -> int:
    """Return the bytes of an array or of all arrays of a tuple."""
    return sum(_width(dtype) * prod(_dims(dims)) for dtype, dims in _ARRAY.findall(shape))


def _width(dtype: str) -> int:
    return _BYTES.get(dtype) or int(re.sub(r"\D", "", dtype) or 8) // 8


def _dims(text: str) -> list[int]:
    return [int(length) for length in text.split(",") if length]


def _dot_flops(dot: _Instruction, shapes: dict[str, str]) -> float:
    operand = re.match(r"%?([\w.\-]+)", dot.rest)
    typed = _ARRAY.match(dot.rest)  # older formats repeat an operand's shape before its name
    left = dot.rest if typed else shapes[operand[1]] if operand else ""
    array = _ARRAY.search(left)
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", dot.rest)
    lengths = _dims(array[2]) if array else []
    inner = prod(lengths[axis] for axis in _dims(contracted[1])) if contracted else 1
    result = _ARRAY.search(dot.shape)
    return 2.0 * inner * prod(_dims(result[2])) if result else 0.0


def _is_later_part(computation: _Computation) -> bool:
    """Return True for a middle or last part of a collective whose start is counted elsewhere.

    The TPU's compiler fuses a collective with concurrent matrix products and repeats the instruction in each
    fusion; the first part has AsyncCollectiveStart.
    """
    collectives = any(i.opcode in COLLECTIVES for i in computation.instructions)
    entered = any(i.opcode == "parameter" for i in computation.instructions)
    chained = any("chain_id" in i.rest for i in computation.instructions if i.opcode in COLLECTIVES)
    return collectives and entered and chained and not _is_first_part(computation)


def _works_until_done(start: _Instruction, scheduled: list[_Instruction]) -> bool:
    """Return True if the chip computes between a collective's start and its end."""
    for instruction in scheduled:
        if instruction.opcode.endswith("-done") and re.search(
            rf"%{re.escape(start.name)}\b", instruction.rest
        ):
            return False
        if instruction.opcode in _WORK:
            return True
    return False


def _is_first_part(computation: _Computation) -> bool:
    custom = [i for i in computation.instructions if i.opcode == "custom-call"]
    return any("AsyncCollectiveStart" in i.rest for i in custom)


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
