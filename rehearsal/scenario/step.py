"""Steps of a scenario: `@step` turns a function of the scene into a typed constructor of a Step."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Concatenate, Literal, ParamSpec

from rehearsal.scenario.scene import Scene

P = ParamSpec("P")
Account = Literal["platform-engineer", "ml-engineer", "ci"]
NOTHING: Mapping[str, Any] = MappingProxyType({})
STEPS: dict[str, Callable[..., None]] = {}  # by name, for the documentation
_PATTERNS = ("prints", "refused", "why")


@dataclass(frozen=True)
class Step:
    """A step: its title in the report, its arguments, and the function that runs it.

    `account`: the account that runs its commands; None: the scenario's own process.
    """

    kind: str
    title: str
    arguments: Mapping[str, Any]
    act: Callable[[Scene], None]
    account: Account | None = None

    def by(self, account: Account) -> Step:
        """Return the step, run by another account."""
        return replace(self, account=account)

    def __str__(self) -> str:
        return self.title


def step(
    title: str, account: Account | None = None, check: Callable[[Mapping[str, Any]], object] | None = None
) -> Callable[[Callable[Concatenate[Scene, P], None]], Callable[P, Step]]:
    """Make a function of the scene a step.

    Args:
        title: format string over the function's arguments; only the first line is shown.
        account: account that runs its commands, unless the scenario chooses another with `by`.
        check: called with the arguments when the step is constructed; ValueError refuses them.
    """

    def decorate(function: Callable[Concatenate[Scene, P], None]) -> Callable[P, Step]:
        kind = function.__name__
        STEPS[kind] = function
        signature = inspect.signature(function)
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Step:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name in _PATTERNS:
                _check_pattern(name, bound.arguments.get(name) or "")
            if check:
                check(bound.arguments)
            return Step(
                kind,
                _title(title, bound.arguments),
                dict(bound.arguments),
                lambda scene: function(scene, *args, **kwargs),
                account,
            )

        return make

    return decorate


def _check_pattern(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as broken:
        raise ValueError(f"{name}: not a regular expression: {broken}") from broken


def _title(template: str, arguments: Mapping[str, Any]) -> str:
    words = {
        name: ", ".join(map(str, value)) if isinstance(value, tuple | dict)
        else inspect.cleandoc(value) if isinstance(value, str)
        else value
        for name, value in arguments.items()
    }  # fmt: skip
    first, *more = template.format_map(words).splitlines()
    must_fail = arguments.get("refused") is not None or arguments.get("fails") is True
    return f"{first}{' …' if more else ''}{'   (must fail)' if must_fail else ''}"
