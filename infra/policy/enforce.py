"""The rules where Pulumi takes a resource: in every preview and update, without an option to forget.

A resource transform sees each resource as the engine does, children of components, too:
https://www.pulumi.com/docs/iac/concepts/resources/options/transforms/
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pulumi

from infra.errors import InfraError, listed
from infra.policy import RULES, Finding, Resource, findings, wrong_exceptions
from infra.settings.schema import PolicySettings, Settings

ADVISORY = "advisory"


def enforce(settings: Settings, today: date) -> None:
    """Check every resource of this program. Raises InfraError for exceptions that are wrong."""
    if problems := list(wrong_exceptions(RULES, settings, today)):
        raise InfraError(listed("policy:exceptions", problems))
    pulumi.runtime.register_resource_transform(_checking(settings))


def _checking(settings: Settings) -> Callable[[pulumi.ResourceTransformArgs], None]:
    mandatory = settings[PolicySettings].enforcement != ADVISORY

    def check(args: pulumi.ResourceTransformArgs) -> None:
        options = args.opts
        one = Resource(
            args.type_, args.name, args.props, bool(options.protect), bool(options.retain_on_delete)
        )
        found = [finding for finding in findings(RULES, [one], settings) if not finding.exception]
        for finding in found:
            pulumi.log.warn(text(finding)) if not mandatory else pulumi.log.error(text(finding))
        if found and mandatory:
            raise pulumi.RunError(f"{args.name} breaks {len(found)} rules; see above")

    return check


def text(finding: Finding) -> str:
    """A finding as it is shown."""
    return str(finding.problem)
