"""`pulumi destroy` of what a fleet's members stand on is refused while they live.

Members aren't in any stack, so no stack knows them. Each stack therefore holds a resource that depends on all
others: its deletion comes first, asks the TPU API, and fails where a member lives. It is a dynamic resource,
whose code a plain `pulumi destroy` runs without running the program.
https://www.pulumi.com/docs/iac/concepts/providers/dynamic-providers/
"""

import os
import traceback
from collections.abc import Sequence
from typing import Any

import pulumi
from pulumi import dynamic

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TIMEOUT_S = 60.0
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
            said = str(error)
            # Pulumi shows people what this gives it: a sentence instead of a traceback.
            traceback.format_exc = lambda *_, **__: said
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
    try:
        nodes = _nodes(project)
    except Exception as error:
        said = str(error)
        if "SERVICE_DISABLED" in said or "has not been used in project" in said:
            return  # no API, no nodes
        fix = "gcloud auth application-default login, and again"
        raise LivingMembersError(
            f"nobody can say whether members of a fleet live: {said}\n    fix: {fix}"
        ) from None
    living = sorted(
        node["name"].rpartition("/")[2]
        for node in nodes
        if "fleet" in node.get("labels", {}) and labels.items() <= node["labels"].items()
    )
    if living:
        some = ", ".join(living[:_SHOWN]) + (f" and {len(living) - _SHOWN} more" if living[_SHOWN:] else "")
        fix = f"python -m fleet delete {environment} --orphans, which ends them; then again"
        raise LivingMembersError(f"{len(living)} members of fleets stand on this: {some}\n    fix: {fix}")


def _nodes(project: str) -> list[dict[str, Any]]:
    """Every node of the project, as the account that Pulumi's provider runs as."""
    import google.auth  # here, so that no program waits for it
    from google.auth.transport.requests import AuthorizedSession
    from google.oauth2.credentials import Credentials

    token = os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
    credentials = Credentials(token) if token else google.auth.default(scopes=[_SCOPE])[0]  # type: ignore[no-untyped-call]
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    # As the provider has it, for a private endpoint.
    base = os.environ.get("GOOGLE_TPU_V2_CUSTOM_ENDPOINT", "https://tpu.googleapis.com/v2/")
    wish = {"fields": "nodes(name,labels),nextPageToken,unreachable", "pageSize": "1000"}
    found: list[dict[str, Any]] = []
    while True:
        url = f"{base}projects/{project}/locations/-/nodes"
        answer = session.get(url, params=wish, timeout=_TIMEOUT_S)
        if not answer.ok:
            raise LivingMembersError(f"HTTP {answer.status_code}: {answer.text[:500]}")
        page = answer.json()
        if page.get("unreachable"):
            raise LivingMembersError(f"{', '.join(page['unreachable'])} can't be reached")
        found += page.get("nodes", [])
        if not page.get("nextPageToken"):
            return found
        wish["pageToken"] = page["nextPageToken"]
