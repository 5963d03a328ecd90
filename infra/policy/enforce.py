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

from infra.policy import RULES, Resource, findings, refuse_wrong_exceptions
from infra.settings.schema import PolicySettings, Settings

_REFUSED = "breaks the policy:"


def enforce(settings: Settings, today: date) -> None:
    """Check every resource of this program. Raises InfraError for exceptions that are wrong."""
    refuse_wrong_exceptions(RULES, settings, today)
    settings_of_pulumi.grpc_error_to_exception = _as_message
    pulumi.runtime.register_resource_transform(_checking(settings))


def _checking(settings: Settings) -> Callable[[pulumi.ResourceTransformArgs], None]:
    mandatory = settings[PolicySettings].mandatory
    log = pulumi.log.error if mandatory else pulumi.log.warn
    declared: list[Resource] = []

    def check(args: pulumi.ResourceTransformArgs) -> None:
        options = args.opts
        one = Resource(
            args.type_, args.name, args.props, bool(options.protect), bool(options.retain_on_delete)
        )
        declared.append(one)
        found = [finding for finding in findings(RULES, [one], settings, declared) if not finding.exception]
        for finding in found:
            log(str(finding.problem))
        if found and mandatory:
            raise pulumi.RunError(f"{args.name} {_REFUSED} {', '.join(one.rule.id for one in found)}")

    return check


# The engine hands a transform's refusal back as an error of gRPC, which Pulumi shows with a traceback.
_shown = settings_of_pulumi.grpc_error_to_exception


def _as_message(exn: Any) -> Exception:
    text = str(exn.details())
    return pulumi.RunError(text.rpartition(" error: ")[2]) if _REFUSED in text else _shown(exn)
