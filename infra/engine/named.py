"""Named slices: read their stack, and create them again.

`pulumi up --refresh` of a slice whose node was deleted finds that it is gone, by a 404, and creates it.
A slice that isn't in its stack any more, since a creation failed, can't be refreshed, and is created.

    python -m infra.engine.named dev train     prints each outcome as JSON
"""

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.core import names
from infra.engine.pulumi import Pulumi, errors
from infra.engine.recovery.settle import settle
from infra.errors import CommandError, InfraError
from infra.google.failures import Failure, Kind, classify
from infra.settings.sources import ROOT
from infra.slices.names import NODE_TYPE, SLICE_TYPE, STACK_ID_VARIABLE, node_urn, slice_urn, zone_of

LAYER = "tpu"
UNHELD = "--unheld"
_LOG = logging.getLogger(__name__)
_MADE = ("create", "create-replacement", "same")
"""Operations after which a resource exists as declared."""


@dataclass(frozen=True)
class StackState:
    """State of the slices' stack.

    Attributes:
        id: value of its nodes' label `stack`.
        held: named slices whose nodes it holds, by zone; None without Pulumi.
        slices: named slices that it holds, with or without a node.
    """

    id: str
    held: Mapping[str, str] | None
    slices: frozenset[str] = frozenset()


def read_stack(environment: str, root: Path = ROOT) -> StackState:
    """Read the stack; if TPU_STACK_ID is set, only the id is known and named slices are left to the user.

    Raises:
        CommandError: there is none yet, or Pulumi fails.
    """
    if given := os.environ.get(STACK_ID_VARIABLE):
        return StackState(given, None)
    resources = Pulumi(environment, root).state(LAYER)
    if not (stack := stack_id(resources)):
        fix = (
            f"tpu up {environment} tpu, which creates the slices of tpu:slices; for tpu run alone write "
            f"tpu:slices: [] and its zones into tpu:zones first; tpu doctor {environment} shows what is left"
        )
        raise CommandError(f"the stack {environment} of {LAYER} isn't up: it has no slices\n    fix: {fix}")
    nodes = (
        resource for resource in resources if resource["type"] == NODE_TYPE and not resource.get("delete")
    )
    held = {node["urn"].rpartition("::")[2]: zone_of(node["id"]) for node in nodes}
    slices = (resource["urn"].rpartition("::")[2] for resource in resources if resource["type"] == SLICE_TYPE)
    return StackState(stack, held, frozenset(slices))


def stack_id(resources: Sequence[Mapping[str, Any]]) -> str:
    """Return the id that a stack's members carry as a label; empty if it isn't up."""
    stack = next((resource for resource in resources if resource["type"] == names.STACK_TYPE), {})
    return str((stack.get("outputs") or {}).get("stackId") or "")


def create(
    environment: str, nodes: Sequence[str], root: Path = ROOT, *, unheld: bool = False
) -> dict[str, Failure | None]:
    """Create slices whose nodes are gone, and nothing else.

    Args:
        environment: its name.
        nodes: of the slices.
        root: the project's folder.
        unheld: also those that the stack doesn't hold; a destroy may have ended since they were requested.

    Returns:
        The failure of each node, None for success.
    """
    settle(environment, LAYER, root)  # imports what a killed update made, removes its lock
    pulumi = Pulumi(environment, root)
    urns = {node: node_urn(environment, node) for node in nodes}
    present = {resource["urn"] for resource in pulumi.state(LAYER)}
    outcome: dict[str, Failure | None] = {}
    if not unheld:
        gone = Failure(Kind.STACK, "the stack doesn't hold it any more: not created")
        # After a creation that failed the stack holds the slice, and no node.
        outcome = {
            node: gone for node, urn in urns.items() if not {urn, slice_urn(environment, node)} & present
        }
        urns = {node: urn for node, urn in urns.items() if node not in outcome}
        if not urns:
            return outcome
    held = sorted(present & {*urns.values()})

    def update(command: str, targets: Iterable[str], *options: str) -> tuple[bool, str, list[dict[str, Any]]]:
        _LOG.info("pulumi %s of %s", command, ", ".join(urns))
        aimed = [part for urn in targets for part in ("--target", urn)]
        always = ("--stack", environment, "--yes", "--skip-preview", "--non-interactive")
        return pulumi.capture(LAYER, command, *always, *options, *aimed)

    # The slice that holds the node, too: what isn't in the stack yet needs its parent made.
    targets = [*urns.values(), *(slice_urn(environment, node) for node in urns)]
    # A zone without capacity must not keep slices in other zones from being created.
    options = ["--continue-on-error"]
    fine, output, events = True, "", list[dict[str, Any]]()
    if len(held) == len(urns):
        options.append("--refresh")
    elif held:
        fine, output, events = update("refresh", held)
    if fine:
        fine, output, events = update("up", targets, *options)
    ended = [event["resOutputsEvent"]["metadata"] for event in events if "resOutputsEvent" in event]
    made = {item["urn"] for item in ended if item["op"] in _MADE}
    messages = errors(events)
    whole = " ".join(messages.get("", [])) or ("" if fine else _last(output)) or "Pulumi did nothing"
    for node, urn in urns.items():
        if urn in messages:
            outcome[node] = classify(" ".join(messages[urn]))
        else:
            outcome[node] = None if urn in made else Failure(Kind.STACK, whole)
    return outcome


def _last(output: str) -> str:
    """Return the line of Pulumi's output that says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reported = (line for line in lines if "error:" in line or "panic:" in line)
    return next(reported, lines[-1] if lines else "no output")


def main(arguments: Sequence[str]) -> int:
    """Run one update, and print its outcome as the last line."""
    unheld = UNHELD in arguments
    environment, *nodes = (word for word in arguments if word != UNHELD)
    try:
        outcome = create(environment, nodes, unheld=unheld)
    except InfraError as error:
        outcome = dict.fromkeys(nodes, Failure(Kind.STACK, str(error)))
    print(json.dumps({node: asdict(failure) if failure else None for node, failure in outcome.items()}))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PULUMI_SKIP_UPDATE_CHECK", "true")
    sys.exit(main(sys.argv[1:]))
