"""Refusals by the settings' files alone, before anything is asked of Pulumi or Google."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from infra.core.environment import layers_on
from infra.engine import prices, registry
from infra.engine.environments import shared_names
from infra.engine.settings import from_file
from infra.errors import Problem
from infra.policy import RULES, STACK, Resource, findings, wrong_settings
from infra.settings.schema import Relation, Settings
from infra.settings.sources import ROOT


def settings_to_apply(environment: str, root: Path = ROOT, uncompared: list[str] | None = None) -> Settings:
    """Read the settings that a plan or update is made with.

    `uncompared` receives the environments whose files have problems: their names are compared with none.
    Raises SettingsError with all that it would be refused for by the folder's files, BudgetError for slices
    above the budget.
    """
    checked = from_file(environment, root, relations=relations(root, uncompared))
    prices.within_budget(checked)
    return checked


def relations(root: Path = ROOT, uncompared: list[str] | None = None) -> tuple[Relation, ...]:
    """Return rules on settings that are to be applied, beside the layers' own.

    These are names that another environment of the folder has, and rules of the policy on stacks.
    `uncompared`: see `settings_to_apply`.
    """

    def names(settings: Settings, given: set[str]) -> Iterator[Problem]:
        problems, unread = shared_names(settings, root)
        if uncompared is not None:
            uncompared.extend(unread)
        yield from problems

    sections = tuple(f"{layer.name}:" for layer in registry.layers())
    return (("gcp:project", *sections), names), (("policy:", "monitoring:budgetPerMonth"), _broken_rules)


def _broken_rules(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield wrong settings of the policy, and the rules on stacks that are broken without an exception."""
    yield from wrong_settings(RULES, settings, datetime.now(tz=UTC).date())
    stacks = [Resource(STACK, f"{layer.name}-{settings.environment}", {}) for layer in layers_on(settings)]
    broken = [finding for finding in findings(RULES, stacks, settings) if finding.mandatory(settings)]
    for value, finding in {finding.value: finding for finding in broken}.items():
        path, _, state = value.partition(": ")
        exception = (
            f'{{rule: {finding.rule.id}, resource: "*-{settings.environment}", reason: WHY, until: "DATE"}}'
        )
        fix = f"{finding.rule.fix}\n    an exception: policy:exceptions: [{exception}]"
        yield Problem(path, state, f"{finding.rule.id}: {finding.rule.about}", fix)
