"""What tells one stack's nodes from those of another stack with the same settings."""

from typing import Any
from uuid import uuid4

import pulumi
from pulumi import dynamic

_DIGITS = 7


class _MarkProvider(dynamic.ResourceProvider):
    """Draws an id once; it asks nobody, so nothing of it is left anywhere but in the state."""

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        return dynamic.CreateResult(uuid4().hex[:_DIGITS], outs=props)


class StackMark(dynamic.Resource):
    """Its `id` is the stack's: drawn when the stack is first brought up, the same until it is destroyed.

    Two people with a backend each have two of them, and neither takes the other's nodes for its own. It
    stands as long as the stack does, whatever slices are listed: by another id its nodes aren't ours.
    """

    def __init__(self) -> None:
        provider = pulumi.ProviderResource("pulumi-python", "stack", {})
        super().__init__(_MarkProvider(), "stack", {}, pulumi.ResourceOptions(provider=provider))
