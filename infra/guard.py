"""`pulumi destroy` of what a fleet's members stand on is refused while they live.

Members aren't in any stack, so no stack knows them. Each stack therefore holds a resource that depends on all
others: its deletion comes first, asks the TPU API, and fails where a member lives. It is a dynamic resource,
whose code a plain `pulumi destroy` runs without running the program.
https://www.pulumi.com/docs/iac/concepts/providers/dynamic-providers/
"""

import traceback
from collections.abc import Sequence
from typing import Any

import pulumi
from pulumi import dynamic

from infra.gcp.failures import FOR_PEOPLE, Kind

_SHOWN = 5


class LivingMembersError(Exception):
    """Members of a fleet live, or nobody can say that none does."""


class _MembersProvider(dynamic.ResourceProvider):
    """Holds a place; `delete` is what matters."""

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        return dynamic.CreateResult("members", outs=props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        return dynamic.DiffResult(changes=_olds.get("labels") != _news.get("labels"))

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.UpdateResult:
        return dynamic.UpdateResult(outs=_news)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        try:
            refuse(_props["project"], _props["environment"], _props["labels"])
        except LivingMembersError as error:
            output = str(error)
            # Pulumi shows people what this gives it: a sentence instead of a traceback.
            traceback.format_exc = lambda *_, **__: output
            raise


class LivingMembers(dynamic.Resource):
    """Keeps a stack from being destroyed under a fleet."""

    def __init__(
        self,
        project: str,
        environment: str,
        labels: pulumi.Input[dict[str, pulumi.Input[str]]],
        needs: Sequence[pulumi.Resource],
    ):
        """Guards `needs` against members with `labels`; to be made last."""
        provider = pulumi.ProviderResource("pulumi-python", "members", {})
        super().__init__(
            _MembersProvider(),
            "members",
            {"project": project, "environment": environment, "labels": labels},
            pulumi.ResourceOptions(provider=provider, depends_on=list(needs)),
        )


def refuse(project: str, environment: str, labels: dict[str, str]) -> None:
    """Raises LivingMembersError where a node with these labels is a fleet's and isn't gone."""
    from infra.gcp.client import Client, RequestError  # here, so that no program waits for Google's libraries

    try:
        living = sorted(
            node["name"].rpartition("/")[2]
            for node in Client(project).nodes("-", "name,labels")
            if "fleet" in node.get("labels", {}) and labels.items() <= node["labels"].items()
        )
    except RequestError as error:
        failure = error.failure
        if failure.kind is Kind.API_OFF:
            return  # no API, no nodes
        why = f"nobody can say whether members of a fleet live: {failure.kind}: {failure.message}"
        fix = f"{failure.fix}; then again" if failure.kind in FOR_PEOPLE else "the same command again"
        raise LivingMembersError(f"{why}\n    fix: {fix}") from None
    if living:
        some = ", ".join(living[:_SHOWN]) + (f" and {len(living) - _SHOWN} more" if living[_SHOWN:] else "")
        fix = f"tpu fleet delete {environment} --orphans, which ends them; then again"
        raise LivingMembersError(f"{len(living)} members of fleets stand on this: {some}\n    fix: {fix}")
