"""Named slices: read their stack, and create them again.

`pulumi up --refresh` of a slice whose node was deleted finds that it is gone, by a 404, and creates it.
A slice that isn't in its stack any more, since a creation failed, can't be refreshed, and is created.

    python -m infra.engine.named dev train     prints each outcome as JSON
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.core import names
from infra.engine.pulumi import Pulumi
from infra.engine.recovery.settle import settle
from infra.errors import CommandError, InfraError
from infra.google.failures import Failure, Kind, classify
from infra.settings.sources import ROOT
from infra.slices.names import NODE_TYPE, node_urn, slice_urn, zone_of

LAYER = "tpu"


@dataclass(frozen=True)
class StackState:
    """State of the slices' stack.

    Attributes:
        id: value of its nodes' label `stack`.
        held: named slices that it holds, by zone; None without Pulumi.
    """

    id: str
    held: Mapping[str, str] | None


def read_stack(environment: str, root: Path = ROOT) -> StackState:
    """Read the stack; if TPU_STACK_ID is set, only the id is known and named slices are left to the user.

    Raises:
        CommandError: there is none yet, or Pulumi fails.
    """
    if given := os.environ.get("TPU_STACK_ID"):
        return StackState(given, None)
    pulumi = Pulumi(environment, root)
    fix = f"pulumi up -s {environment}"
    if environment not in pulumi.stacks(LAYER):
        raise CommandError(f"there is no stack {environment} of {LAYER} yet\n    fix: {fix}")
    resources = pulumi.state(LAYER)
    outputs = next(
        (resource.get("outputs") or {} for resource in resources if resource["type"] == names.STACK_TYPE), {}
    )
    if not outputs.get("stackId"):
        raise CommandError(f"the stack {environment} of {LAYER} isn't up\n    fix: {fix}")
    nodes = (
        resource for resource in resources if resource["type"] == NODE_TYPE and not resource.get("delete")
    )
    held = {node["urn"].rpartition("::")[2]: zone_of(node["id"]) for node in nodes}
    return StackState(str(outputs["stackId"]), held)


def create(environment: str, nodes: Sequence[str], root: Path = ROOT) -> dict[str, Failure | None]:
    """Create slices whose nodes are gone, and nothing else. Returns each node's failure, None for success."""
    # Imported late: Pulumi's SDK takes twice as long as everything else.
    from pulumi import automation
    from pulumi.automation import errors as refused

    class Workspace(automation.LocalWorkspace):
        """The user's own, whose selected stack stays what it is: every call here names its stack."""

        def select_stack(self, stack_name: str) -> None:
            pass

    op = automation.OpType
    settle(environment, LAYER, root)  # imports what a killed update made, removes its lock
    workspace = Workspace(work_dir=str(root), env_vars={"PULUMI_SKIP_UPDATE_CHECK": "true"})
    stack = automation.Stack.select(environment, workspace)
    errors: dict[str, list[str]] = {}
    done: set[str] = set()

    def on_event(event: automation.EngineEvent) -> None:
        output, ended = event.diagnostic_event, event.res_outputs_event
        if output and output.severity == "error":
            errors.setdefault(output.urn or "", []).append(output.message.strip())
        if ended and ended.metadata.op in (op.CREATE, op.CREATE_REPLACEMENT, op.SAME):
            done.add(ended.metadata.urn)

    # The slice that holds the node, too: what isn't in the stack yet needs its parent made.
    urn = {node: node_urn(environment, node) for node in nodes}
    targets = [*urn.values(), *(slice_urn(environment, node) for node in nodes)]
    whole = ""
    held = {resource["urn"] for resource in Pulumi(environment, root).state(LAYER)} & {*urn.values()}
    refreshed = held if len(held) < len(nodes) else set[str]()
    try:
        if refreshed:
            stack.refresh(target=sorted(refreshed))
        # A zone without capacity must not keep slices in other zones from being created.
        stack.up(target=targets, refresh=len(held) == len(nodes), continue_on_error=True, on_event=on_event)
    except refused.ConcurrentUpdateError as error:
        whole = f"another update of the stack is under way ({_last(error)})"
    except refused.CommandError as error:
        whole = _last(error)
    outcome: dict[str, Failure | None] = {}
    for node in nodes:
        output = " ".join(errors.get(urn[node], []))
        outcome[node] = classify(output) if output else None
        if not output and urn[node] not in done:
            outcome[node] = Failure(Kind.STACK, " ".join(errors.get("", [])) or whole or "Pulumi did nothing")
    return outcome


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reported = (line for line in lines if "error:" in line or "panic:" in line)
    return next(reported, lines[-1] if lines else "no output")


def main(arguments: Sequence[str]) -> int:
    """Run one update, and print its outcome as the last line."""
    environment, *nodes = arguments
    try:
        outcome = create(environment, nodes)
    except InfraError as error:
        outcome = dict.fromkeys(nodes, Failure(Kind.STACK, str(error)))
    print(json.dumps({node: asdict(failure) if failure else None for node, failure in outcome.items()}))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PULUMI_SKIP_UPDATE_CHECK", "true")
    sys.exit(main(sys.argv[1:]))
