"""Runs a program: one step after the other, as the reference says.

Between steps no virtual time passes; Google's take tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.cloud.services.workflows.engine import library, outside
from rehearsal.cloud.services.workflows.engine.outside import Outside
from rehearsal.cloud.services.workflows.engine.steps import (
    Assign,
    Block,
    For,
    Invoke,
    Program,
    RaiseValue,
    Return,
    Routine,
    Step,
    Switch,
    Try,
)
from rehearsal.cloud.services.workflows.engine.values import (
    Function,
    Place,
    Raised,
    error,
    is_number,
    member,
    position,
    size,
    truth,
    type_name,
)

# https://cloud.google.com/workflows/quotas
MAX_STEPS, MAX_DEPTH, MAX_MEMORY_BYTES = 100_000, 20, 512 << 10


@dataclass(frozen=True)
class _Jump:
    """Continuation: a step's name, end, break or continue; with `end` maybe the value to return."""

    to: str
    value: Any = None


@dataclass
class _Frame:
    """A (sub)workflow that is running. The scopes that can be seen now, outermost first."""

    routine: Routine
    outside: Outside
    scopes: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    seen: Raised | None = None  # the error that has its place in here already

    def variable(self, name: str) -> Any:
        """Its value; KeyError if no step that ran has assigned it."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise error("KeyError", f"variable not assigned: {name}")

    def named(self, name: str) -> Any:
        """Return a constant of the library, or a function."""
        return copy.deepcopy(library.CONSTANTS[name]) if name in library.CONSTANTS else Function(name)

    def function(self, name: str, arguments: list[Any]) -> Any:
        """Return what the library's function answers."""
        if name in outside.READS:
            return outside.read(self.outside, name, arguments)
        return library.call(name, arguments)

    def assign(self, name: str, value: Any) -> None:
        """Assign in the scope that has the name, or else in the innermost."""
        for scope in reversed(self.scopes):
            if name in scope:
                scope[name] = value
                return
        self.scopes[-1][name] = value


class Interpreter:
    """Execution of a workflow."""

    def __init__(self, program: Program, outside: Outside) -> None:
        self._program, self._outside = program, outside
        self._frames: list[_Frame] = []
        self._count = 0
        self.at: Place | None = None  # the step that runs now

    async def run(self, argument: Any) -> Any:
        """Return what `main` returns; Raised for an error that it doesn't catch."""
        main = self._program.routines["main"]
        given = {main.parameters[0]: argument} if main.parameters else {}
        return await self._enter(main, given)

    async def _enter(self, routine: Routine, given: Mapping[str, Any]) -> Any:
        if len(self._frames) >= MAX_DEPTH:
            raise error("RecursionError", f"more than {MAX_DEPTH} calls within each other")
        frame = _Frame(routine, self._outside)
        for name in routine.parameters:
            value = given[name] if name in given else routine.defaults[name](frame)
            frame.scopes[0][name] = copy.deepcopy(value)
        self._frames.append(frame)
        try:
            self._check_memory()
            jump = await self._block(routine.block, frame)
        finally:
            self._frames.pop()
        return jump.value if jump else None

    async def _block(self, block: Block, frame: _Frame) -> _Jump | None:
        number = 0
        while number < len(block.steps):
            jump = await self._step(block.steps[number], frame)
            if jump is None:
                number += 1
            elif jump.to in block.index:
                number = block.index[jump.to]
            else:
                return jump
        return None

    async def _step(self, step: Step, frame: _Frame) -> _Jump | None:
        self._count += 1
        self.at = step.place
        await asyncio.sleep(0)
        try:
            if self._count > MAX_STEPS:
                raise error("ResourceLimitError", f"more than {MAX_STEPS} steps were executed")
            jump = await self._act(step, frame)
        except Raised as raised:
            if frame.seen is not raised:
                frame.seen = raised
                raised.trace.append(step.place)
            raise
        return jump or (_Jump(step.next) if step.next else None)

    async def _act(self, step: Step, frame: _Frame) -> _Jump | None:
        action = step.action
        if isinstance(action, Assign):
            for variable, keys, value in action.targets:
                self._assign(frame, variable, [key(frame) for key in keys], value(frame))
        elif isinstance(action, Invoke):
            given = {name: value(frame) for name, value in action.arguments.items()}
            result = await self._call(action.function, given)
            if action.result:
                self._assign(frame, action.result, [], result)
        elif isinstance(action, Switch):
            for condition, case in action.cases:
                if truth(condition(frame), "a condition"):
                    return await self._act(case, frame) or (_Jump(case.next) if case.next else None)
        elif isinstance(action, For):
            return await self._loop(action, frame)
        elif isinstance(action, Try):
            return await self._try(action, frame)
        elif isinstance(action, RaiseValue):
            raise Raised(copy.deepcopy(action.value(frame)))
        elif isinstance(action, Return):
            return _Jump("end", action.value(frame))
        elif isinstance(action, Block):
            return await self._block(action, frame)
        return None

    def _assign(self, frame: _Frame, variable: str, keys: list[Any], value: Any) -> None:
        value = copy.deepcopy(value)
        if not keys:
            frame.assign(variable, value)
        else:
            holder = frame.variable(variable)
            for key in keys[:-1]:
                holder = member(holder, key)
            if isinstance(holder, list):
                holder[position(holder, keys[-1])] = value
            elif isinstance(holder, dict) and isinstance(keys[-1], str):
                holder[keys[-1]] = value
            else:
                raise error("TypeError", f"a {type_name(holder)} has no member {keys[-1]}")
        self._check_memory()

    def _check_memory(self) -> None:
        used = sum(
            size(value) for frame in self._frames for scope in frame.scopes for value in scope.values()
        )
        if used > MAX_MEMORY_BYTES:
            raise error("ResourceLimitError", f"variables take more than {MAX_MEMORY_BYTES} bytes")

    async def _call(self, function: str, given: Mapping[str, Any]) -> Any:
        if routine := self._program.routines.get(function):
            return await self._enter(routine, given)
        if function in outside.CALLS:
            return await outside.perform(self._outside, function, given)
        names = (outside.READS.get(function) or library.parameters(function))[0]
        # The reference's optional parameters are its last, so that those given come first.
        arguments = [given[name] for name in names if name in given]
        if function in outside.READS:
            return outside.read(self._outside, function, arguments)
        return library.call(function, arguments)

    async def _loop(self, loop: For, frame: _Frame) -> _Jump | None:
        for index, value in enumerate(_over(loop, loop.over(frame))):
            depth = len(frame.scopes)
            frame.scopes.append({loop.value: copy.deepcopy(value)})
            if loop.index:
                frame.scopes[-1][loop.index] = index
            try:
                jump = await self._block(loop.block, frame)
            finally:
                del frame.scopes[depth:]
            if jump is not None and jump.to == "break":
                return None
            if jump is not None and jump.to != "continue":
                return jump
        return None

    async def _try(self, action: Try, frame: _Frame) -> _Jump | None:
        retries = 0
        while True:
            depth = len(frame.scopes)
            try:
                body = action.body
                return await self._act(body, frame) or (_Jump(body.next) if body.next else None)
            except Raised as raised:
                del frame.scopes[depth:]
                wait_s = await self._retry(action.retry(frame), raised, retries) if action.retry else None
                if wait_s is None and action.handler is None:
                    raise
                caught = raised
            if wait_s is None:
                break
            retries += 1
            await self._outside.sleep(wait_s)
        assert action.handler is not None
        frame.scopes.append({action.name: copy.deepcopy(caught.value)} if action.name else {})
        try:
            return await self._block(action.handler, frame)
        finally:
            frame.scopes.pop()

    async def _retry(self, policy: Any, raised: Raised, retries: int) -> float | None:
        """Seconds to wait before the next attempt; None for none."""
        backoff = policy.get("backoff", {}) if isinstance(policy, dict) else {}
        numbers = [backoff.get(key) for key in ("initial_delay", "max_delay", "multiplier")]
        most, predicate = (
            (policy.get(key) for key in ("max_retries", "predicate")) if backoff else (None, None)
        )
        if not all(map(is_number, [*numbers, most])) or not isinstance(predicate, Function):
            why = "a retry policy needs predicate, max_retries and backoff with initial_delay, max_delay and "
            raise error("TypeError", f"{why}multiplier")
        if 0 <= most <= retries:  # type: ignore[operator]
            return None
        routine = self._program.routines.get(predicate.name)
        if routine is not None:
            again = await self._enter(routine, dict.fromkeys(routine.parameters[:1], raised.value))
        else:
            again = library.call(predicate.name, [raised.value])
        if not truth(again, "what a predicate answers"):
            return None
        first, longest, multiplier = (float(number) for number in numbers)  # type: ignore[arg-type]
        return float(min(first * multiplier**retries, longest))


def _over(loop: For, result: Any) -> list[Any]:
    if not loop.is_range:
        if not isinstance(result, list):
            raise error("TypeError", f"'in' of a loop must be a list, not a {type_name(result)}")
        return result
    if not isinstance(result, list) or len(result) != 2 or not all(map(is_number, result)):
        raise error("TypeError", "'range' must be a list of two numbers")
    first, last = result
    return [first + step for step in range(int(last - first) + 1)] if last >= first else []
