"""Expressions between `${` and `}`: their parser and their evaluation.

https://cloud.google.com/workflows/docs/reference/syntax/expressions. Functions in expressions don't wait:
`http.*`, `sys.sleep` and the like are for `call` steps only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rehearsal.cloud.services.workflows.engine.values import (
    OPERATORS,
    SourceError,
    UncoveredError,
    is_number,
    member,
    truth,
    type_name,
)
from rehearsal.cloud.services.workflows.engine.values import error as raised

MAX_LENGTH = 400  # characters: https://cloud.google.com/workflows/quotas
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<sign>//|==|!=|<=|>=|[-+*/%<>()\[\].,{}:]))""",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "b": "\b", "f": "\f"}
_CONSTANTS = {word: value for value, words in (
    (True, ("true", "True", "TRUE")), (False, ("false", "False", "FALSE")), (None, ("null", "Null", "NULL")),
) for word in words}  # fmt: skip
# From the loosest to the tightest, below `or`, `and` and `not`.
_LEVELS = (("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "//", "%"))


class Scope(Protocol):
    """Variables that an expression reads."""

    def variable(self, name: str) -> Any:
        """Its value."""

    def named(self, name: str) -> Any:
        """Return a constant of the library, or a function as a value."""

    def function(self, name: str, arguments: list[Any]) -> Any:
        """Return what the library's function answers."""


Run = Callable[[Scope], Any]


@dataclass(frozen=True)
class Expression:
    """A parsed one; `variables` and `functions` are the names that it uses.

    `steps`: for one that can be assigned to, the variable's name is followed by these keys.
    """

    text: str
    run: Run
    variables: frozenset[str]
    functions: frozenset[str]
    steps: tuple[Run, ...] | None = None


def parse(text: str, is_function: Callable[[str], bool]) -> Expression:
    """SourceError unless it is an expression; `is_function` knows dotted names."""
    if len(text) > MAX_LENGTH:
        raise SourceError(f"the expression has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    return _Parser(text, is_function).whole()


@dataclass(frozen=True)
class _Node:
    run: Run
    name: str = ""  # of a plain dotted name
    root: str = ""  # the variable at the beginning
    steps: tuple[Run, ...] | None = None


class _Parser:
    def __init__(self, text: str, is_function: Callable[[str], bool]) -> None:
        self._text, self._is_function = text, is_function
        self._tokens = list(self._scan())
        self._at = 0
        self._variables: set[str] = set()
        self._functions: set[str] = set()

    def _scan(self) -> list[tuple[str, str]]:
        result, at = [], 0
        while self._text[at:].strip():
            token = _TOKEN.match(self._text, at)
            if token is None:
                raise SourceError(f"'{self._text[at:].strip()[0]}' isn't expected in '{self._text}'")
            kind = str(token.lastgroup)
            result.append((kind, token[kind]))
            at = token.end()
        return result

    def whole(self) -> Expression:
        node = self._or()
        if self._at < len(self._tokens):
            raise self._unexpected()
        self._use(node)
        return Expression(
            self._text, node.run, frozenset(self._variables), frozenset(self._functions), node.steps
        )

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, *words: str) -> str:
        """Return the next token if it is one of these words, else ''."""
        if self._at < len(self._tokens) and self._tokens[self._at][0] != "string" and self._peek() in words:
            self._at += 1
            return self._tokens[self._at - 1][1]
        return ""

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected()

    def _unexpected(self) -> SourceError:
        result = f"'{self._peek()}' isn't expected" if self._peek() else "it ends too early"
        return SourceError(f"parse error in expression '{self._text}': {result}")

    def _use(self, node: _Node) -> None:
        """Return a dotted name that wasn't called is a variable and its members, or a function as a value."""
        if node.root:
            self._variables.add(node.root)

    def _or(self) -> _Node:
        return self._logic("or", self._and)

    def _and(self) -> _Node:
        return self._logic("and", self._not)

    def _logic(self, word: str, below: Callable[[], _Node]) -> _Node:
        left = below()
        while self._take(word):
            right = below()
            self._use(left)
            self._use(right)
            left = _Node(_both(word, left.run, right.run))
        return left

    def _not(self) -> _Node:
        if self._take("not"):
            node = self._not()
            self._use(node)
            return _Node(lambda scope: not truth(node.run(scope), "the operand of 'not'"))
        return self._binary(0)

    def _binary(self, level: int) -> _Node:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while sign := self._take(*_LEVELS[level]):
            right = self._binary(level + 1)
            self._use(left)
            self._use(right)
            left = _Node(_operation(sign, left.run, right.run))
        return left

    def _unary(self) -> _Node:
        if sign := self._take("-", "+"):
            node = self._unary()
            self._use(node)
            return _Node(_signed(sign, node.run))
        return self._postfix(self._atom())

    def _postfix(self, node: _Node) -> _Node:
        while sign := self._take(".", "[", "("):
            if sign == "(":
                node = self._called(node)
            elif sign == "[":
                key = self._or()
                self._use(key)
                self._need("]")
                node = _of(node, key.run, "")
            else:
                kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
                if kind != "name":
                    raise self._unexpected()
                self._at += 1
                node = _of(node, _constant(name), name)
                if node.name and self._is_function(node.name) and self._peek() != "(":
                    node = self._named(node.name)
        return node

    def _named(self, name: str) -> _Node:
        """Return a function that isn't called, or a constant of the library."""
        self._functions.add(name)
        return _Node(lambda scope: scope.named(name))

    def _called(self, node: _Node) -> _Node:
        if not node.name:
            raise self._unexpected()
        arguments: list[Run] = []
        while not self._take(")"):
            argument = self._or()
            self._use(argument)
            arguments.append(argument.run)
            if self._peek() != ")":
                self._need(",")
        name = node.name
        self._functions.add(name)
        return _Node(lambda scope: scope.function(name, [argument(scope) for argument in arguments]))

    def _atom(self) -> _Node:
        if self._at >= len(self._tokens):
            raise self._unexpected()
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return _Node(_constant(int(text) if text.isdigit() else float(text)))
        if kind == "string":
            return _Node(_constant(_unquoted(text)))
        if kind == "name" and text in _CONSTANTS:
            return _Node(_constant(_CONSTANTS[text]))
        if kind == "name" and text not in ("and", "or", "not", "in"):
            if self._is_function(text) and self._peek() not in ("(", "."):
                return self._named(text)
            return _Node(lambda scope: scope.variable(text), text, text, ())
        if text == "(":
            inner = self._or()
            self._use(inner)
            self._need(")")
            return _Node(inner.run)
        if text == "[":
            return self._list()
        if text == "{":
            raise UncoveredError(f"a map in an expression ('{self._text}') is not covered")
        self._at -= 1
        raise self._unexpected()

    def _list(self) -> _Node:
        items: list[Run] = []
        while not self._take("]"):
            item = self._or()
            self._use(item)
            items.append(item.run)
            if self._peek() != "]":
                self._need(",")
        return _Node(lambda scope: [item(scope) for item in items])


def _constant(value: Any) -> Run:
    return lambda scope: value


def _of(node: _Node, key: Run, name: str) -> _Node:
    whole = f"{node.name}.{name}" if node.name and name else ""
    steps = None if node.steps is None else (*node.steps, key)
    return _Node(lambda scope: member(node.run(scope), key(scope)), whole, node.root, steps)


def _operation(sign: str, left: Run, right: Run) -> Run:
    run = OPERATORS[sign]
    return lambda scope: run(left(scope), right(scope))


def _both(word: str, left: Run, right: Run) -> Run:
    def run(scope: Scope) -> bool:
        first = truth(left(scope), f"the operand of '{word}'")
        return first if first is (word == "or") else truth(right(scope), f"the operand of '{word}'")

    return run


def _signed(sign: str, operand: Run) -> Run:
    def run(scope: Scope) -> Any:
        value = operand(scope)
        if not is_number(value):
            raise raised("TypeError", f"unsupported operand type for {sign}: {type_name(value)}")
        return -value if sign == "-" else value

    return run


def _unquoted(text: str) -> str:
    def escaped(result: re.Match[str]) -> str:
        if result[1] not in _ESCAPES:
            raise SourceError(f"unknown escape '\\{result[1]}' in {text}")
        return _ESCAPES[result[1]]

    return re.sub(r"\\(.)", escaped, text[1:-1], flags=re.DOTALL)
