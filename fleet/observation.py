"""Result of a controller's step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.model import Decision, ObservedNode, View
from infra.google.failures import Failure
from infra.slices.nodes import Node


@dataclass(frozen=True)
class Observation:
    """Result of a step.

    Attributes:
        view: the observation.
        members: in their present or intended zones.
        decisions: for each member.
        orphans: nodes of this stack outside the settings.
        events: messages since the previous step.
        begun: members for which a request was begun.
        failures: by member, of requests that failed since the previous step.
        outdated: keys of living members with metadata of earlier settings.
        nodes: existing nodes of this stack, with their members.
        unwanted: slices that no record wants now, with the reason.
        whole: False if the environment has further members, or may have.
    """

    view: View
    members: Sequence[Node]
    decisions: list[Decision]
    orphans: list[ObservedNode]
    events: list[str]
    begun: tuple[str, ...] = ()
    failures: Mapping[str, Failure] = field(default_factory=dict)
    outdated: tuple[str, ...] = ()
    nodes: Sequence[tuple[Node, ObservedNode]] = ()
    unwanted: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True
