"""Mark that distinguishes a stack's nodes from those of another stack with the same settings."""

from typing import Any
from uuid import uuid4

import pulumi
from pulumi import dynamic

_DIGITS = 7


class _MarkProvider(dynamic.ResourceProvider):
    """A provider that draws an id once; the id is in the state alone."""

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        return dynamic.CreateResult(uuid4().hex[:_DIGITS], outs=props)


class StackMark(dynamic.Resource):
    """A resource with the stack's `id`: drawn at the stack's first update, unchanged until its destruction.

    Two people with a backend each have two ids, so that neither changes the other's nodes. It exists as long
    as the stack does, whatever slices are listed: nodes with another id belong to another stack.
    """

    def __init__(self) -> None:
        provider = pulumi.ProviderResource("pulumi-python", "stack", {})
        super().__init__(_MarkProvider(), "stack", {}, pulumi.ResourceOptions(provider=provider))
