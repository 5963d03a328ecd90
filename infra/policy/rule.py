"""Rules, and the rules that a resource breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from fnmatch import fnmatchcase
from typing import Any

from infra.errors import InfraError, Problem, listed
from infra.settings.schema import PRODUCTION, PolicyException, PolicySettings, Settings


@dataclass(frozen=True)
class Resource:
    """A resource as the engine has it: inputs in Pulumi's spelling, without unknown ones.

    An input that is unknown counts as absent, so no rule is skipped for it; an unknown item is in its list
    all the same. `depends`: the URNs that an input was made of, by the input's name; no rule needs them.
    """

    type: str
    name: str
    inputs: Mapping[str, Any]
    protect: bool = False
    retain_on_delete: bool = False
    depends: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Resource:
        """Convert a resource of a stored state, or of one that a preview foresees."""
        return cls(
            state["type"],
            state["urn"].rpartition("::")[2],
            state.get("inputs") or {},
            bool(state.get("protect")),
            bool(state.get("retainOnDelete")),
            state.get("propertyDependencies") or {},
        )

    def get(self, path: str) -> Any:
        """Return the input at a path such as "networkConfig.enableExternalIps"; None where there is none."""
        value: Any = self.inputs
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


_LONGEST = timedelta(days=366)
STACK = "pulumi:pulumi:Stack"
"""The type of the resource that every stack has: on it rules about what the settings say are checked."""

Check = Callable[[Resource, Settings], Iterable[str]]
"""Yields what was found where the rule is broken: `path: value`."""
StackCheck = Callable[[Resource, Settings, Sequence[Resource]], Iterable[str]]
"""The same, where the rule is about other resources of the stack, too: those declared before it, or all."""


@dataclass(frozen=True)
class Rule:
    """Rule for all resources of some types.

    Attributes:
        id: as in docs/reference/policy.md, e.g. "B01"; settings name it so.
        types: Pulumi's type tokens; one that ends with * stands for all that begin so.
        about: the rule as a sentence.
        fix: what to declare instead.
        maps: the same rule in checkov (CKV…) and in the CIS benchmark of Google Cloud, version 3.0.
        check: what is found that breaks it.
        beside: what is found by what else is in the stack.
        advice_but_in_prod: breaking it is a warning in all other environments.
    """

    id: str
    types: tuple[str, ...]
    about: str
    fix: str
    maps: str
    check: Check
    beside: StackCheck | None = None
    advice_but_in_prod: bool = False

    def broken(self, resource: Resource, settings: Settings, stack: Sequence[Resource]) -> Iterator[str]:
        """Value that breaks it."""
        if any(fnmatchcase(resource.type, kind) for kind in self.types):
            yield from self.check(resource, settings)
            yield from self.beside(resource, settings, stack) if self.beside else ()


@dataclass(frozen=True)
class Finding:
    """A resource that breaks a rule; with the exception that allows it, if there is one."""

    rule: Rule
    resource: Resource
    value: str
    exception: PolicyException | None = None

    def mandatory(self, settings: Settings) -> bool:
        """Return True if it ends a preview or update."""
        advice = self.rule.advice_but_in_prod and settings.environment != PRODUCTION
        return not (advice or self.exception) and settings[PolicySettings].mandatory

    @property
    def problem(self) -> Problem:
        """Format as an error."""
        return Problem(
            f"{self.resource.type} {self.resource.name}",
            self.value,
            f"{self.rule.id}: {self.rule.about}",
            self.rule.fix,
        )


def findings(
    rules: Sequence[Rule],
    resources: Sequence[Resource],
    settings: Settings,
    stack: Sequence[Resource] | None = None,
) -> Iterator[Finding]:
    """Return every rule that a resource breaks, those with an exception marked.

    Args:
        rules: which rules.
        resources: which resources.
        settings: of the environment.
        stack: all that is declared with them so far; the resources alone, unless given.
    """
    allowed = settings[PolicySettings].exceptions
    for resource in resources:
        for rule in rules:
            for value in rule.broken(resource, settings, resources if stack is None else stack):
                matching = (
                    e for e in allowed if e.rule == rule.id and fnmatchcase(resource.name, e.resource)
                )
                yield Finding(rule, resource, value, next(matching, None))


def refuse_wrong_settings(rules: Sequence[Rule], settings: Settings, today: date) -> None:
    """Raise InfraError with all problems of the policy's own settings."""
    if problems := list(wrong_settings(rules, settings, today)):
        raise InfraError(listed("policy", problems))


def wrong_settings(rules: Sequence[Rule], settings: Settings, today: date) -> Iterator[Problem]:
    """Advice alone in prod, exceptions for rules that there aren't, and those whose time is over."""
    if settings.environment == PRODUCTION and not settings[PolicySettings].mandatory:
        fix = "remove it; what may break a rule for a while stands in policy:exceptions, with its end"
        yield Problem("policy:enforcement", "advisory in prod", "rules are mandatory in prod", fix)
    known = {rule.id for rule in rules}
    exceptions = settings[PolicySettings].exceptions
    for i, exception in enumerate(exceptions):
        where, of = f"policy:exceptions[{i}]", f"{exception.rule} of {exception.resource}"
        if any((e.rule, e.resource) == (exception.rule, exception.resource) for e in exceptions[:i]):
            yield Problem(where, f"{of} again", "each exception is listed once", "remove one of the two")
        if exception.rule not in known:
            fix = "docs/reference/policy.md lists them"
            yield Problem(f"{where}.rule", f'"{exception.rule}"', "must be the id of a rule", fix)
        if date.fromisoformat(exception.until) < today:
            fix = "mend the resource and take the exception out, or give it another date"
            yield Problem(f"{where}.until", exception.until, "an exception ends on its date", fix)
        if date.fromisoformat(exception.until) - today > _LONGEST:
            fix = f"write {today + _LONGEST} at most; or change the rule, if it is wrong"
            yield Problem(f"{where}.until", exception.until, "an exception lasts for a year at most", fix)


def literal(path: str, *allowed: Any) -> Check:
    """Return a check that an input has one of some values; absent or unknown ones fail."""

    def check(resource: Resource, _: Settings) -> Iterator[str]:
        if (value := resource.get(path)) not in allowed:
            yield f"{path}: {'nothing' if value is None else value}"

    return check


def given(*paths: str) -> Check:
    """Return a check that inputs are present."""

    def check(resource: Resource, _: Settings) -> Iterator[str]:
        yield from (f"{path}: nothing" for path in paths if not resource.get(path))

    return check


def never(path: str, *refused: Any) -> Check:
    """Return a check that an input has none of some values."""

    def check(resource: Resource, _: Settings) -> Iterator[str]:
        if (value := resource.get(path)) in refused:
            yield f"{path}: {value}"

    return check


def every(*checks: Check) -> Check:
    """Combine checks: any failure counts."""

    def check(resource: Resource, settings: Settings) -> Iterator[str]:
        for checked in checks:
            yield from checked(resource, settings)

    return check


def nothing(resource: Resource, _: Settings) -> Iterator[str]:
    """Check nothing, for rules on resources beside it."""
    yield from ()


def forbidden(resource: Resource, _: Settings) -> Iterator[str]:
    """Refuse every resource of a type."""
    yield f"a {resource.type.rpartition(':')[2]}"
