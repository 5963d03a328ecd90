"""Collectives of a compiled step, and the time that a chip waits for them.

The instructions of a program are in the order in which the compiler has scheduled them. They are run through
on two clocks: the chip's, by the compiler's own estimates (`estimated_cycles`), and the links', at the speed
that was measured on them. Links carry one collective after another. A chip waits from the end of a
collective's schedule until its last byte: cycles between start and end cover link time, and no cycle covers
two collectives. Kernels have no estimate, so that they cover nothing.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from workload.preflight.hlo import Computation, HloProgram, Instruction, arrays, called, groups_of, size
from workload.preflight.slices import CHIP

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r"%([\w.\-]+)")
_CHAIN = re.compile(r'channel_id=(\d+).*chain_id="(\d+)"')
# A sum over slices: part of an array is sent to the runtime between them, which sends the sum back.
_BETWEEN_SLICES = '_xla_host_transfer_handler_name="xla_megascale_runtime"'
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]+)"')
# The compiler's fusion of a sum and the chip's slice of it, as a reduce-scatter (the comment on
# REDUCE_SCATTER_FUSION in AI-Hypercomputer/maxtext benchmarks/xla_flags_library.py at e591f30cb). A v6e-8 was
# measured to send an array once for it: the source of `ici_measured_gb_per_s` in v6e.toml.
_SCATTERED = "all-reduce-scatter"
_BEGINS, _ENDS = "AsyncCollectiveStart", "AsyncCollectiveDone"


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
        waits_s: seconds of a run in which the chip computes nothing, at the links' measured speed.
        ends: False if its start is scheduled and its end isn't found; then it counts as waited for.
    """

    kind: str
    name: str
    size_bytes: int
    group: int
    across: bool
    times: int
    waits_s: float = 0.0
    ends: bool = True

    @property
    def sent_bytes(self) -> float:
        """Bytes that a chip sends in a run: a gathered or scattered array once, a summed one twice."""
        share = (self.group - 1) / self.group if self.group else 1.0
        return self.size_bytes * share * (2 if self.kind == "all-reduce" else 1)


@dataclass(frozen=True)
class Rates:
    """Speeds of a chip's resources.

    Attributes:
        cycles_per_s: the clock of the compiler's estimates.
        ici_bytes_per_s: sent over the links of a slice.
        dcn_bytes_per_s: sent by a chip to other slices.
    """

    cycles_per_s: float = CHIP.cycles_per_s
    ici_bytes_per_s: float = CHIP.ici_measured_bytes_per_s
    dcn_bytes_per_s: float = CHIP.dcn_bytes_per_s_per_host / 4

    def seconds(self, collective: Collective) -> float:
        """Return the time of a run on the links."""
        rate = self.dcn_bytes_per_s if collective.across else self.ici_bytes_per_s
        return collective.sent_bytes / rate


@dataclass
class _Timeline:
    """Clocks of a scheduled computation, in seconds from its start."""

    now_s: float = 0.0
    free_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})  # links; by `across`
    pending: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # end on the links, by handle


class Schedule:
    """Run through a program's schedule.

    Attributes:
        collectives: every collective that runs; parts of a split collective count as one.
        step_s: of the whole program: estimated cycles and waits.
    """

    def __init__(self, program: HloProgram, devices_a_slice: int, rates: Rates | None = None):
        self.collectives: list[Collective] = []
        self._program, self._devices = program, devices_a_slice
        self._rates = rates or Rates()
        self.step_s = self._run(program.entry, 1)

    def _run(self, name: str, times: int) -> float:
        """Run through a computation, `times` a step; return its seconds."""
        at = _Timeline()
        instructions = self._program.computations[name].instructions
        for instruction in instructions:
            self._advance(at, instruction, times)
        for handle in at.pending.values():  # started, and no end found
            for number, _ in handle:
                lost = self.collectives[number]
                self.collectives[number] = replace(lost, waits_s=self._rates.seconds(lost), ends=False)
        return at.now_s

    def _advance(self, at: _Timeline, instruction: Instruction, times: int) -> None:
        opcode, rest = instruction.opcode, instruction.rest
        if "body" in (roles := called(rest)):
            trips = self._program.trips(instruction)
            at.now_s += trips * self._run(roles["body"], times * trips)
        elif opcode in ("call", "conditional"):
            at.now_s += max(
                (self._run(target, times) for target in self._program.targets(instruction)), default=0.0
            )
        elif opcode == "send" and _BETWEEN_SLICES in rest:
            sent = size(arrays(instruction.shape)[0])
            collective = Collective("all-reduce", instruction.name, sent, self._program.slices, True, times)
            self._begin(at, _rendezvous(rest), collective)
        elif opcode == "recv" and _BETWEEN_SLICES in rest:
            at.pending[instruction.name] = at.pending.pop(_rendezvous(rest), [])
        elif opcode == "send-done":
            pass
        elif opcode.endswith("-done"):
            self._end(at, _operand(rest))
        elif opcode.endswith("-update"):  # brings the operands of a start that has none
            self._send(at, instruction.name, [number for number, _ in at.pending.pop(_operand(rest), [])])
        else:
            self._compute(at, instruction, times)

    def _compute(self, at: _Timeline, instruction: Instruction, times: int) -> None:
        """Run an instruction that computes, starts collectives, or waits for its own."""
        computation = self._computation_of(instruction)
        marks = (
            {handle: mark for mark in (_BEGINS, _ENDS) for handle in _marked(computation, mark)}
            if computation
            else {}
        )
        for handle in (handle for handle, mark in marks.items() if mark == _ENDS):
            self._end(at, handle)
        at.now_s += self.computes_s(instruction)
        idle = instruction.opcode.endswith("-start") and instruction.rest.startswith(")")
        for exchange in self._exchanges(instruction, computation):
            handle = _handle(exchange) or instruction.name
            if handle == instruction.name or marks.get(handle) == _BEGINS:
                self._begin(at, handle, self._collective(exchange, times), idle)
        if instruction.name in at.pending and not instruction.opcode.endswith("-start"):
            self._end(at, instruction.name)

    def computes_s(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction without its waits."""
        cycles = _CYCLES.search(instruction.rest)
        return int(cycles[1]) / self._rates.cycles_per_s if cycles else 0.0

    def _begin(self, at: _Timeline, handle: str, collective: Collective, idle: bool = False) -> None:
        """Record a collective, and send it unless its operands come later."""
        number = len(self.collectives)
        self.collectives.append(collective)
        if idle:
            at.pending.setdefault(handle, []).append((number, math.inf))
        else:
            self._send(at, handle, [number])

    def _send(self, at: _Timeline, handle: str, numbers: list[int]) -> None:
        """Put collectives on the links, behind those that are on them."""
        for number in numbers:
            collective = self.collectives[number]
            begin_s = max(at.now_s, at.free_s[collective.across])
            at.free_s[collective.across] = end_s = begin_s + self._rates.seconds(collective)
            at.pending.setdefault(handle, []).append((number, end_s))

    def _end(self, at: _Timeline, handle: str) -> None:
        """Wait for the collectives of a handle."""
        for number, end_s in at.pending.pop(handle, []):
            waits_s = max(0.0, end_s - at.now_s)
            at.now_s += waits_s
            self.collectives[number] = replace(self.collectives[number], waits_s=waits_s)

    def _computation_of(self, instruction: Instruction) -> Computation | None:
        """Return the computation of a fusion or of an asynchronous call."""
        roles = called(instruction.rest)
        target = roles.get("calls") or (
            roles.get("to_apply") if instruction.opcode in ("call", "call-start") else None
        )
        return self._program.computations.get(target or "")

    def _exchanges(self, instruction: Instruction, computation: Computation | None) -> Iterator[Instruction]:
        """Yield the collectives that an instruction is or contains."""
        if instruction.opcode.removesuffix("-start") in COLLECTIVES:
            yield instruction
        for inner in computation.instructions if computation else ():
            if computation and computation.name.startswith(_SCATTERED) and inner.opcode == "all-reduce":
                inner = replace(inner, opcode=_SCATTERED)
                yield inner
            yield from self._exchanges(inner, self._computation_of(inner))

    def _collective(self, instruction: Instruction, times: int) -> Collective:
        kind = instruction.opcode.removesuffix("-start")
        groups = groups_of(instruction.rest)
        across = any(len({device // self._devices for device in group}) > 1 for group in groups)
        size_bytes = size(instruction.shape)
        if instruction.opcode == "all-gather-start":
            size_bytes = max(size(part) for part in arrays(instruction.shape))
        group = len(groups[0]) if groups else 0
        if kind == "reduce-scatter":
            size_bytes *= group or 1
        if kind == _SCATTERED:
            kind = "reduce-scatter"
        return Collective(kind, instruction.name, size_bytes, group, across, times)


def _handle(collective: Instruction) -> str:
    """Return the key that the parts of a collective share that is split over fusions; empty for others.

    The TPU's compiler fuses a collective with the matrix products beside it and repeats the instruction in
    each fusion.
    """
    chain = _CHAIN.search(collective.rest)
    return f"channel {chain[1]} chain {chain[2]}" if chain else ""


def _marked(computation: Computation, mark: str) -> list[str]:
    """Return the handles of a fusion's collectives that it starts, or ends."""
    operands = {
        name
        for instruction in computation.instructions
        if instruction.opcode == "custom-call" and f'"{mark}"' in instruction.rest
        for name in _NAME.findall(instruction.rest)
    }
    return [
        _handle(instruction)
        for instruction in computation.instructions
        if instruction.opcode in COLLECTIVES and instruction.name in operands
    ]


def _operand(rest: str) -> str:
    name = _NAME.search(rest)
    return name[1] if name else ""


def _rendezvous(rest: str) -> str:
    name = _RENDEZVOUS.search(rest)
    return name[1] if name else ""
