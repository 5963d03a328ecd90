"""From the text of a definition to a program that can run; what can't is refused with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rehearsal.cloud.services.workflows.engine import expressions, library, outside
from rehearsal.cloud.services.workflows.engine.document import Map, read
from rehearsal.cloud.services.workflows.engine.expressions import Expression
from rehearsal.cloud.services.workflows.engine.steps import (
    Action,
    Assign,
    Block,
    For,
    Invoke,
    Nothing,
    Program,
    RaiseValue,
    Return,
    Routine,
    Step,
    Switch,
    Try,
    Value,
)
from rehearsal.cloud.services.workflows.engine.values import Place, SourceError, UncoveredError

MOST = 50  # assignments of a step, conditions of a switch: https://cloud.google.com/workflows/quotas
_NAME = re.compile(r"[A-Za-z_]\w*")
_STEP_NAME = re.compile(r"\w+")
_ACTIONS = {
    "assign": (), "call": ("args", "result"), "switch": (), "for": (), "try": ("retry", "except"),
    "raise": (), "return": (), "steps": (),
}  # fmt: skip
_ELSEWHERE = ("googleapis.", "events.", "experimental.")
_LOOP = ("break", "continue")


def parse(text: str) -> Program:
    """SourceError: what is wrong with the definition, and in which line."""
    document = read(text)
    if isinstance(document, list):
        document = Map(main=Map(steps=document))
    if not isinstance(document, Map) or "main" not in document:
        raise SourceError("a workflow must have a 'main' with steps, or be a list of steps")
    for name, body in document.items():
        if not _NAME.fullmatch(name) or name in library.FUNCTIONS:
            raise SourceError(f"'{name}' can't be the name of a workflow")
        if not isinstance(body, Map) or body.keys() - {"params", "steps"} or "steps" not in body:
            raise SourceError(f"workflow '{name}' must have 'steps', and may have 'params'")
    readers = {name: _Reader(name, document) for name in document}
    return Program({name: reader.routine(document[name]) for name, reader in readers.items()})


@dataclass
class _Names:
    """The variables of one scope; those of a loop or an except block are not seen outside of it."""

    above: _Names | None = None
    own: set[str] = field(default_factory=set)

    def sees(self, name: str) -> bool:
        return name in self.own or (self.above is not None and self.above.sees(name))


@dataclass
class _Where:
    """Position of a step: its scope, the names that it can jump to, whether a loop is around it."""

    names: _Names
    targets: frozenset[str]
    in_loop: bool


class _Reader:
    """Reads one (sub)workflow."""

    def __init__(self, routine: str, document: Map) -> None:
        self._routine, self._document = routine, document
        self._steps: set[str] = set()
        self._used: list[tuple[str, _Names, int]] = []

    def routine(self, body: Map) -> Routine:
        names, parameters, defaults = _Names(), [], {}
        for item in body.get("params") or ():
            name, *more = item if isinstance(item, dict) else (item,)
            if more or not _NAME.fullmatch(str(name)):
                raise self._wrong(body.line, f"'{item}' can't be a parameter")
            parameters.append(name)
            if isinstance(item, dict):
                defaults[name] = self._value(item[name], names, body.line)
        if self._routine == "main" and len(parameters) > 1:
            raise self._wrong(body.line, "'main' takes one parameter at most")
        names.own.update(parameters)
        block = self._block(body["steps"], _Where(names, frozenset(), False), body.line)
        for name, seen, line in self._used:
            if not seen.sees(name):
                raise self._wrong(line, f"the variable '{name}' isn't assigned where it can be seen")
        return Routine(self._routine, tuple(parameters), defaults, block)

    def _wrong(self, line: int, why: str) -> SourceError:
        return SourceError(f"line {line}, in workflow '{self._routine}': {why}")

    def _block(self, result: Any, where: _Where, line: int) -> Block:
        if not isinstance(result, list) or not result:
            raise self._wrong(line, "'steps' must be a list of at least one step")
        for entry in result:
            if not isinstance(entry, Map) or len(entry) != 1:
                raise self._wrong(getattr(entry, "line", line), "a step must be a map of its name alone")
        names = [next(iter(item)) for item in result]
        for name, entry in zip(names, result, strict=True):
            if not _STEP_NAME.fullmatch(name) or name in (*_LOOP, "end"):
                raise self._wrong(entry.line, f"'{name}' can't be the name of a step")
            if name in self._steps:
                raise self._wrong(entry.line, f"there are two steps '{name}'")
            self._steps.add(name)
        inside = _Where(where.names, where.targets | {*names}, where.in_loop)
        steps = (
            self._step(name, item[name], inside, item.line) for name, item in zip(names, result, strict=True)
        )
        return Block(tuple(steps), {name: number for number, name in enumerate(names)})

    def _step(self, name: str, body: Any, where: _Where, line: int, more: Iterable[str] = ()) -> Step:
        """`more`: keys that belong to what the step is in."""
        if not isinstance(body, Map):
            raise self._wrong(line, f"step '{name}' must be a map of what it does")
        if "parallel" in body:
            raise UncoveredError(str(self._wrong(body.line, "'parallel' is not covered")))
        result = [key for key in _ACTIONS if key in body]
        known = {"next", *result, *more, *(key for kind in result for key in _ACTIONS[kind])}
        if unknown := [key for key in body if key not in known]:
            raise self._wrong(body.line, f"step '{name}' has an unknown key '{unknown[0]}'")
        if len(result) > 1 or not (result or "next" in body):
            keys = ", ".join(_ACTIONS)
            raise self._wrong(body.line, f"step '{name}' must have exactly one of {keys}, or next alone")
        to = body.get("next", "")
        if to != "" and to != "end" and to not in where.targets and not (to in _LOOP and where.in_loop):
            raise self._wrong(body.line, f"step '{name}' can't jump to '{to}'")
        action = self._action(result[0], body, where) if result else Nothing()
        return Step(Place(name, self._routine, body.line, body.column), action, to)

    def _action(self, kind: str, body: Map, where: _Where) -> Action:
        line, names, value = body.line, where.names, body[kind]
        if kind == "assign":
            return self._assign(value, names, line)
        if kind == "call":
            return self._call(body, names)
        if kind == "switch":
            return self._switch(value, where, line)
        if kind == "for":
            return self._for(value, where, line)
        if kind == "try":
            return self._try(body, where)
        if kind == "steps":
            return self._block(value, where, line)
        result = self._value(value, names, line)
        return RaiseValue(result) if kind == "raise" else Return(result)

    def _assign(self, result: Any, names: _Names, line: int) -> Assign:
        if not isinstance(result, list) or not 0 < len(result) <= MOST:
            raise self._wrong(line, f"'assign' must be a list of 1 to {MOST} maps")
        targets = []
        for item in result:
            if not isinstance(item, Map) or len(item) != 1:
                raise self._wrong(line, "an assignment must be a map of one variable")
            ((text, value),) = item.items()
            target = self._expression(text, names, item.line)
            if target.steps is None:
                raise self._wrong(item.line, f"'{text}' can't be assigned to")
            variable = re.match(r"\w+", text.strip())
            assert variable is not None
            names.own.add(variable[0])
            targets.append((variable[0], target.steps, self._value(value, names, item.line)))
        return Assign(tuple(targets))

    def _call(self, body: Map, names: _Names) -> Invoke:
        function, line = body["call"], body.line
        given = body.get("args") or {}
        if isinstance(function, str) and function.startswith(_ELSEWHERE):
            raise UncoveredError(str(self._wrong(line, f"'{function}' is not covered")))
        known, needed = self._parameters(function, line)
        if not isinstance(given, dict):
            raise self._wrong(line, f"the arguments of '{function}' must be a map")
        if unknown := [name for name in given if name not in known]:
            raise self._wrong(line, f"'{function}' has no argument '{unknown[0]}': {', '.join(known)}")
        if missing := [name for name in needed if name not in given]:
            raise self._wrong(line, f"'{function}' needs the argument '{missing[0]}'")
        arguments = {name: self._value(value, names, line) for name, value in given.items()}
        result = body.get("result", "")
        if result and not _NAME.fullmatch(str(result)):
            raise self._wrong(line, f"'{result}' can't be the name of a variable")
        if result:
            names.own.add(result)
        return Invoke(function, arguments, result)

    def _parameters(self, function: Any, line: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what a function takes, and what of that it needs."""
        if function in self._document and function != "main":
            given = self._document[function].get("params") or ()
            known = tuple(next(iter(item)) if isinstance(item, dict) else item for item in given)
            return known, tuple(item for item in given if not isinstance(item, dict))
        if function in outside.CALLS:
            return outside.CALLS[function][1], ()
        if function in outside.READS:
            known, needed = outside.READS[function]
            return known, known[:needed]
        if function in library.FUNCTIONS:
            known, needed = library.parameters(function)
            return known, known[:needed]
        raise self._wrong(line, f"there is no function '{function}'")

    def _switch(self, result: Any, where: _Where, line: int) -> Switch:
        if not isinstance(result, list) or not 0 < len(result) <= MOST:
            raise self._wrong(line, f"'switch' must be a list of 1 to {MOST} conditions")
        cases = []
        for number, item in enumerate(result):
            if not isinstance(item, Map) or "condition" not in item:
                raise self._wrong(getattr(item, "line", line), "each case of a switch needs a 'condition'")
            condition = self._value(item["condition"], where.names, item.line)
            cases.append((condition, self._step(f"case {number + 1}", item, where, item.line, ["condition"])))
        return Switch(tuple(cases))

    def _for(self, result: Any, where: _Where, line: int) -> For:
        if not isinstance(result, Map) or result.keys() - {"value", "index", "in", "range", "steps"}:
            raise self._wrong(line, "'for' must have value, in or range, steps, and may have index")
        if "value" not in result or "steps" not in result or ("in" in result) is ("range" in result):
            raise self._wrong(result.line, "'for' needs value, steps, and one of in and range")
        names = _Names(where.names, {str(result[key]) for key in ("value", "index") if key in result})
        over = self._value(result["in"] if "in" in result else result["range"], where.names, result.line)
        block = self._block(result["steps"], _Where(names, frozenset(), True), result.line)
        return For(result["value"], result.get("index", ""), over, "range" in result, block)

    def _try(self, body: Map, where: _Where) -> Try:
        if not {"retry", "except"} & body.keys():
            raise self._wrong(body.line, "'try' needs retry or except")
        tried = self._step("try", body["try"], where, body.line)
        retry = self._value(body["retry"], where.names, body.line) if "retry" in body else None
        if isinstance(body.get("retry"), dict) and (
            missing := {"predicate", "max_retries", "backoff"} - body["retry"].keys()
        ):
            raise self._wrong(body.line, f"'retry' needs {', '.join(sorted(missing))}")
        caught = body.get("except")
        if caught is None:
            return Try(tried, retry, "", None)
        if not isinstance(caught, Map) or caught.keys() - {"as", "steps"} or "steps" not in caught:
            raise self._wrong(body.line, "'except' must have steps, and may have as")
        names = _Names(where.names, {caught["as"]} if "as" in caught else set())
        block = self._block(caught["steps"], _Where(names, where.targets, where.in_loop), caught.line)
        return Try(tried, retry, caught.get("as", ""), block)

    # Values

    def _value(self, raw: Any, names: _Names, line: int) -> Value:
        """Map and lists of values, expressions, and plain ones."""
        if isinstance(raw, str):
            text = raw.strip()
            if text.startswith("${") and text.endswith("}"):
                expression = self._expression(text[2:-1], names, line)
                return expression.run
            if "${" in raw:
                why = f"'{raw}': an expression must be the whole value, as in ${{\"a\" + b}}"
                raise self._wrong(line, why)
            return lambda scope: raw
        line = getattr(raw, "line", line)
        if isinstance(raw, list):
            items = [self._value(item, names, line) for item in raw]
            return lambda scope: [item(scope) for item in items]
        if isinstance(raw, dict):
            members = {key: self._value(item, names, line) for key, item in raw.items()}
            return lambda scope: {key: item(scope) for key, item in members.items()}
        return lambda scope: raw

    def _expression(self, text: str, names: _Names, line: int) -> Expression:
        try:
            result = expressions.parse(text, self._is_function)
        except UncoveredError as error:
            raise UncoveredError(str(self._wrong(line, str(error)))) from None
        except SourceError as error:
            raise self._wrong(line, str(error)) from None
        self._used.extend((name, names, line) for name in sorted(result.variables))
        for name in sorted(result.functions):
            if name in outside.CALLS:
                raise self._wrong(line, f"'{name}' waits, and can't be called in an expression")
            if not self._is_function(name):
                raise self._wrong(line, f"there is no function '{name}'")
            if name in self._document and f"{name}(" in text.replace(" ", ""):
                raise UncoveredError(
                    str(self._wrong(line, f"calling '{name}' in an expression is not covered"))
                )
        return result

    def _is_function(self, name: str) -> bool:
        tables = (library.FUNCTIONS, library.CONSTANTS, outside.READS, outside.CALLS)
        return any(name in table for table in tables) or (name in self._document and name != "main")
