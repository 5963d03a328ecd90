"""Rules that every resource of every stack must obey: on each preview and update, and in stored state.

`enforce` checks a resource as the engine takes it, so plain `pulumi up` is checked, too; `tpu policy` checks
what is stored. A rule is one entry of RULES; docs/reference/policy.md is made of them.
"""

from infra.policy import buckets, cluster, filters, hosts, identity, network, pipeline
from infra.policy.rule import (
    STACK,
    Finding,
    Resource,
    Rule,
    findings,
    refuse_wrong_settings,
    wrong_settings,
)

RULES: tuple[Rule, ...] = (
    *buckets.RULES, *identity.RULES, *network.RULES, *hosts.RULES, *cluster.RULES, *pipeline.RULES,
    *filters.RULES,
)  # fmt: skip
"""Rules in the order of the page."""

__all__ = [
    "RULES",
    "STACK",
    "Finding",
    "Resource",
    "Rule",
    "findings",
    "refuse_wrong_settings",
    "wrong_settings",
]
