"""Refusals by the settings' files alone, before anything is asked of Pulumi or Google."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from infra.core.environment import layers_on
from infra.engine import prices
from infra.engine.environments import shared_names
from infra.errors import Problem, SettingsError
from infra.policy import RULES, STACK, Resource, findings, wrong_settings
from infra.settings.schema import PolicySettings, Settings
from infra.settings.sources import ROOT


def refuse_to_apply(settings: Settings, root: Path = ROOT) -> None:
    """Raise SettingsError with all that a plan or update would be refused for by its settings.

    These are names that another environment of the folder has, rules of the policy on the settings
    themselves, and slices above the budget.
    """
    if problems := [*shared_names(settings, root)[0], *_broken_rules(settings)]:
        raise SettingsError(f"Pulumi.{settings.environment}.yaml", problems)
    prices.within_budget(settings)


def _broken_rules(settings: Settings) -> Iterator[Problem]:
    """Yield wrong settings of the policy, and the rules on stacks that are broken without an exception."""
    yield from wrong_settings(RULES, settings, datetime.now(tz=UTC).date())
    if not settings[PolicySettings].mandatory:
        return
    stacks = [Resource(STACK, f"{layer.name}-{settings.environment}", {}) for layer in layers_on(settings)]
    broken = [finding for finding in findings(RULES, stacks, settings) if not finding.exception]
    for value, finding in {finding.value: finding for finding in broken}.items():
        path, _, state = value.partition(": ")
        exception = (
            f'{{rule: {finding.rule.id}, resource: "*-{settings.environment}", reason: WHY, until: "DATE"}}'
        )
        fix = f"{finding.rule.fix}\n    an exception: policy:exceptions: [{exception}]"
        yield Problem(path, state, f"{finding.rule.id}: {finding.rule.about}", fix)
