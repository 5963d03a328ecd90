"""Where one check of the emulated cloud or of the stacks can be changed, found in the source by operators.

A change makes the cloud kinder than Google, or a stack other than declared; it never only renames.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.engine.registry import layers

ROOT = Path(__file__).parents[2]
CLOUD, STACKS = "cloud", "stacks"
# Here any comparison decides who may do what, or which packet passes.
DECISIONS = ("iam.py", "conditions.py", "vpc.py", "policies.py", "firewall.py")
# Shared by layers: who is granted what, what is enabled, how things are called.
SHARED = ("names.py", "gcp/roles.py", "guard.py", "nodes.py")
_PERMISSION = re.compile(r"[a-z]+\.[a-zA-Z]+\.[a-zA-Z]+")
# What such a text has in it that is a method's id, a collection's, a message's or a host's.
_NO_PERMISSION = {
    "projects",
    "google",
    "billingAccounts",
    "organizations",
    "com",
    "dev",
    "internal",
    "v2",
    "template",
}
_CHECK = re.compile(r"_?(check|require|refuse|spend|forbid)[a-z_]*")
_MISUSE = {"ValueError", "TypeError", "EntryError", "RuntimeError", "HostError", "AssertionError", "KeyError"}
_ITEMS = {"required", "immutable"}
# Words for people, which decide nothing.
_PROSE = {"description", "display_name", "title"}
_LOOSENED = {"mutable", "mask_required", "check", "deleting", "children", "pattern", "omit"}


@dataclass(frozen=True)
class Site:
    """One change: `new` for what stands between two offsets of a file."""

    part: str
    path: str
    line: int
    last: int
    function: str
    operator: str
    old: str
    new: str
    begin: int
    end: int

    @property
    def name(self) -> tuple[str, str, str, str]:
        """What it is declared by: no line, which moves."""
        return self.path, self.function, self.operator, " ".join(self.old.split())

    def applied(self, source: str) -> str:
        """The file with the change; ValueError if it is another file by now."""
        if source[self.begin : self.end] != self.old:
            raise ValueError(f"{self.path}:{self.line} isn't {self.old!r}")
        return source[: self.begin] + self.new + source[self.end :]

    def __str__(self) -> str:
        new = " ".join(self.new.split()) or "nothing"
        return f"{self.path}:{self.line} {self.function} | {self.operator} | {self.name[3]} -> {new}"


def files(root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Every file with checks, by what it belongs to."""
    for path in sorted((root / "rehearsal/cloud").rglob("*.py")):
        yield CLOUD, path
    yield CLOUD, root / "rehearsal/hosts/firewall.py"
    for layer in layers():
        for path in sorted((root / "infra" / layer.name).rglob("*.py")):
            if path.name not in ("settings.py", "rules.py"):  # `python -m tests.proofs settings`
                yield STACKS, path
    for name in SHARED:
        yield STACKS, root / "infra" / name


def every(root: Path = ROOT) -> list[Site]:
    """All sites."""
    return [
        site
        for part, path in files(root)
        for site in of_source(part, path.relative_to(root).as_posix(), path.read_text())
    ]


def of_source(part: str, path: str, source: str) -> list[Site]:
    """The sites of one file; each of another text."""
    finder = _Finder(part, path, source)
    finder.visit(ast.parse(source))
    return list({(site.begin, site.end, site.new): site for site in finder.found}.values())


def sample(sites: Iterable[Site], count: int, seed: int) -> list[Site]:
    """So many of each operator on each part, always the same of a seed and a source."""
    strata: dict[tuple[str, str], list[Site]] = defaultdict(list)
    for site in sites:
        strata[site.part, site.operator].append(site)
    rng = random.Random(seed)
    return [site for _, of in sorted(strata.items()) for site in rng.sample(of, min(count, len(of)))]


class _Finder(ast.NodeVisitor):
    def __init__(self, part: str, path: str, source: str) -> None:
        self.part, self.path, self.source = part, path, source
        self.found: list[Site] = []
        self._scope: list[str] = []
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._cloud, self._decides = part == CLOUD, path.rpartition("/")[2] in DECISIONS

    def _offset(self, line: int, column: int) -> int:
        begin = self._starts[line - 1]
        return begin + len(self.source[begin : self._starts[line]].encode()[:column].decode())

    def _add(self, operator: str, node: ast.expr | ast.stmt, new: str) -> None:
        self._put(operator, self._offset(node.lineno, node.col_offset), self._end(node), new, node.lineno)

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _put(self, operator: str, begin: int, end: int, new: str, line: int) -> None:
        old = self.source[begin:end]
        scope, last = ".".join(self._scope) or "module", line + old.count("\n")
        self.found.append(Site(self.part, self.path, line, last, scope, operator, old, new, begin, end))

    def _drop(self, operator: str, node: ast.expr | ast.keyword) -> None:
        """Without an item or argument and the comma behind it; dicts' items begin with their key."""
        begin = self._offset(node.lineno, node.col_offset)
        self._drop_span(operator, begin, self._end(node), node.lineno)

    def _drop_span(self, operator: str, begin: int, end: int, line: int) -> None:
        comma = re.compile(r"\s*,").match(self.source, end)
        self._put(operator, begin, comma.end() if comma else end, "", line)

    def _text(self, node: ast.expr) -> str:
        return self.source[self._offset(node.lineno, node.col_offset) : self._end(node)]

    def _scoped(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _scoped

    def visit_If(self, node: ast.If) -> None:
        refuses = isinstance(last := node.body[-1], ast.Raise) and _raised(last) not in _MISUSE
        denies = (
            self._decides
            and isinstance(last, ast.Return | ast.Continue)
            and (isinstance(last, ast.Continue) or ast.unparse(last) in ("return None", "return False"))
        )
        if refuses or denies:
            open_ = isinstance(last, ast.Raise) and _raised(last) == "NotEmulatedError"
            self._add(
                "unemulated passes" if open_ else "guard off",
                node.test,
                f"({self._text(node.test)}) and False",
            )
            if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or):
                for operand in node.test.values:
                    self._add("operand off", operand, f"(({self._text(operand)}) and False)")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if ast.unparse(node.targets[0]) != "__all__":  # for linters and readers
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if self._decides and self._cloud:
            self._add("decision turned", node, f"(not ({self._text(node)}))")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._cloud and self._text(node.value).endswith("lags") and node.attr.endswith("_s"):
            self._add("lag 0", node, "0.0")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not self._cloud and isinstance(node.value, ast.Yield):
            self._add("item dropped", node, "yield from ()")
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            called = _called(call)
            if self._cloud and _CHECK.fullmatch(called.rpartition(".")[2]):
                self._add("check skipped", node, "pass")
            elif not self._cloud and called.startswith("gcp."):
                self._add("grant dropped" if "IAM" in called else "resource dropped", node, "pass")
            elif not self._cloud and called.endswith(".add"):
                self._add("item dropped", node, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = _called(node).rpartition(".")[2]
        if self._cloud:
            self._entry(node, called)
        elif _called(node).startswith("gcp.") or called == "ResourceOptions":
            for one in node.keywords:
                if one.arg not in (None, "opts", *_PROSE):
                    self._drop("option dropped" if called == "ResourceOptions" else "argument dropped", one)
                self._value(one.value)
        for child in node.args if called != "Reference" else ():  # the first is a field's path
            self.visit(child)
        for one in node.keywords:
            if one.arg != "roles":  # what is granted, and no check
                self.visit(one)
        self.visit(node.func)

    def _entry(self, node: ast.Call, called: str) -> None:
        if called == "Method" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            self._add("permission dropped", node.args[1], "None")
        for one in node.keywords:
            if called == "Collection" and one.arg in _ITEMS and isinstance(one.value, ast.Tuple):
                self._tuple("field loosened", one.value)
            elif called == "Collection" and one.arg in _LOOSENED:
                self._drop("entry loosened", one)
            elif called == "Reference" and one.arg == "permission":
                self._add("permission dropped", one.value, '""')
        if called == "Reference":
            for one in node.keywords:
                if one.arg == "on_delete" and not self._text(one.value).endswith("KEEP"):
                    self._add("reference not held", one.value, '"keep"')
            if all(one.arg != "on_delete" for one in node.keywords):
                comma = ", " if node.args or node.keywords else ""
                text = self._text(node)[:-1].rstrip().rstrip(",")
                self._add("reference not held", node, f'{text}{comma}on_delete="keep")')

    def visit_Tuple(self, node: ast.Tuple) -> None:
        """A table of handlers with what each asks for."""
        if self._cloud and len(node.elts) == 2 and isinstance(node.elts[0], ast.Attribute):
            asked = node.elts[1]
            if isinstance(asked, ast.Constant) and _PERMISSION.fullmatch(str(asked.value)):
                self._add("permission dropped", asked, "None")
        if not self._cloud and all(isinstance(one, ast.Constant | ast.Attribute) for one in node.elts):
            self._tuple("item dropped", node)
        self.generic_visit(node)

    def _tuple(self, operator: str, node: ast.Tuple) -> None:
        for item in node.elts:
            others = "".join(f"{self._text(one)}, " for one in node.elts if one is not item)
            self._add(operator, node, f"({others.rstrip()})")

    def visit_List(self, node: ast.List) -> None:
        for item in node.elts if not self._cloud else ():
            if isinstance(item, ast.Constant | ast.Dict):
                self._drop("item dropped", item)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            prose = isinstance(key, ast.Constant) and key.value in _PROSE
            if not self._cloud and key is not None and not prose:
                begin = self._offset(key.lineno, key.col_offset)
                self._drop_span("item dropped", begin, self._end(value), key.lineno)
                self._value(value)
            self.visit(value)

    def _value(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and node.value is not None and " " not in str(node.value):
            text = self._text(node)
            number = isinstance(node.value, int | float)
            new = (
                str(not node.value)
                if isinstance(node.value, bool)
                else f"{text} + {1 if number else repr('x')}"
            )
            self._add("value changed", node, new)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Keys of a dict, which are method ids, aren't visited."""
        text = node.value
        if not (self._cloud and isinstance(text, str) and _PERMISSION.fullmatch(text)):
            return
        verb = text.rpartition(".")[2]
        permission = not set(text.split(".")) & _NO_PERMISSION and verb not in ("get", "list")
        if permission and not self.path.endswith("/roles.py"):
            self._add("permission weakened", node, repr(text.removesuffix(verb) + "get"))


def _raised(node: ast.Raise) -> str:
    error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return ast.unparse(error).rpartition(".")[2] if error is not None else "KeyError"


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)
