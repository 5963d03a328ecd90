"""The rules where Pulumi takes a resource: in every preview and update, without an option to forget.

A resource transform sees each resource as the engine does, children of components, too:
https://www.pulumi.com/docs/iac/concepts/resources/options/transforms/
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.output import Unknown
from pulumi.runtime import rpc
from pulumi.runtime import settings as settings_of_pulumi

from infra.policy import RULES, STACK, Resource, findings
from infra.settings.schema import Settings

_REFUSED = "breaks the policy:"
_UNKNOWN = object()
_TO_COME = "known after the update"  # in a list, which isn't empty for that


def enforce(settings: Settings, layer: str) -> None:
    """Check every resource of a layer's program, and first its stack, which transforms aren't called for.

    The policy's own settings were checked before (infra/engine/before.py). Raises RunError for a stack that
    breaks a rule.
    """
    settings_of_pulumi.grpc_error_to_exception = _as_message
    _refuse(settings, [Resource(STACK, f"{layer}-{settings.environment}", {})])
    pulumi.runtime.register_resource_transform(_checking(settings))


def _checking(settings: Settings) -> Callable[[pulumi.ResourceTransformArgs], Awaitable[None]]:
    declared: list[Resource] = []

    async def check(args: pulumi.ResourceTransformArgs) -> None:
        options, inputs = args.opts, await _known(args.props)
        declared.append(
            Resource(args.type_, args.name, inputs, bool(options.protect), bool(options.retain_on_delete))
        )
        _refuse(settings, declared)

    return check


def _refuse(settings: Settings, declared: Sequence[Resource]) -> None:
    """Log the rules that the last resource breaks. Raises RunError where one is mandatory."""
    resource = declared[-1]
    unexcused = [
        finding for finding in findings(RULES, [resource], settings, declared) if not finding.exception
    ]
    broken = [finding for finding in unexcused if finding.mandatory(settings)]
    for finding in unexcused:
        log = pulumi.log.error if finding in broken else pulumi.log.warn
        log(str(finding.problem))
    if broken:
        raise pulumi.RunError(
            f"{resource.name} {_REFUSED} {', '.join(finding.rule.id for finding in broken)}"
        )


async def _known(value: Any) -> Any:
    """Return inputs without values unknown in a preview; secrets as stored state has them, below "value".

    The engine hands over a secret, or what was made of another resource, as an Output.
    """
    if isinstance(value, pulumi.Output):
        if not await value.is_known():
            return _UNKNOWN
        known = await _known(await value.future())
        return rpc.wrap_rpc_secret(known) if await value.is_secret() else known
    if isinstance(value, Unknown):
        return _UNKNOWN
    if isinstance(value, Mapping):
        items = {key: await _known(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not _UNKNOWN}
    if isinstance(value, list):
        known = [await _known(item) for item in value]
        return [_TO_COME if item is _UNKNOWN else item for item in known]
    return value


# The engine hands a refusal back as an error of gRPC, which Pulumi shows with its place in the code.
_shown = settings_of_pulumi.grpc_error_to_exception


def _as_message(exn: Any) -> Exception:
    text = str(exn.details())
    if _REFUSED not in text:
        return _shown(exn)
    return pulumi.RunError(text.rpartition(" error: ")[2].partition("\n")[0].rstrip(":"))
