"""The rules where Pulumi takes a resource: in every preview and update, without an option to forget.

A resource transform sees each resource as the engine does, children of components, too:
https://www.pulumi.com/docs/iac/concepts/resources/options/transforms/
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pulumi
from pulumi.runtime import settings as settings_of_pulumi

from infra.errors import InfraError, listed
from infra.policy import RULES, Finding, Resource, findings, wrong_exceptions
from infra.settings.schema import PolicySettings, Settings

ADVISORY = "advisory"
_REFUSED = "breaks the policy:"


def enforce(settings: Settings, today: date) -> None:
    """Check every resource of this program. Raises InfraError for exceptions that are wrong."""
    if problems := list(wrong_exceptions(RULES, settings, today)):
        raise InfraError(listed("policy:exceptions", problems))
    settings_of_pulumi.grpc_error_to_exception = _as_message
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
            raise pulumi.RunError(f"{args.name} {_REFUSED} {', '.join(one.rule.id for one in found)}")

    return check


# The engine hands a transform's refusal back as an error of gRPC, which Pulumi shows with a traceback.
_shown = settings_of_pulumi.grpc_error_to_exception


def _as_message(exn: Any) -> Exception:
    text = str(exn.details())
    return pulumi.RunError(text.rpartition(" error: ")[2]) if _REFUSED in text else _shown(exn)


def text(finding: Finding) -> str:
    """A finding as it is shown."""
    return str(finding.problem)
