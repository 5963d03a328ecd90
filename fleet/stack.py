"""One update of the slices' stack, in a process of its own: which members, and what became of each.

An update works on all of its members beside one another, and is told what it may touch, by URN: the rest of
the stack stays as it is.

    python -m fleet.stack dev bring tpu-us-east5-b-0=us-east5-b    prints its outcome as JSON
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pulumi import automation
from pulumi.automation import errors as refused

from fleet.failures import Failure, Kind, classify
from fleet.provision import Outcome, known, move, require
from infra import names
from infra.errors import InfraError
from infra.settings.sources import ROOT

_MADE = frozenset({automation.OpType.CREATE, automation.OpType.CREATE_REPLACEMENT})
_GONE = frozenset({automation.OpType.DELETE})


class _Workspace(automation.LocalWorkspace):
    """The user's own, whose selected stack stays what the user selected: every call here names its stack."""

    def select_stack(self, stack_name: str) -> None:
        pass


class Stack:
    """The slices' stack of one environment."""

    def __init__(self, environment: str, root: Path = ROOT):
        self.environment, self.root = environment, root
        require(environment, root)
        workspace = _Workspace(work_dir=str(root), env_vars={"PULUMI_SKIP_UPDATE_CHECK": "true"})
        self._stack = automation.Stack.select(environment, workspace)

    def bring(self, places: Mapping[str, str]) -> Outcome:
        """Creates members, each in a zone; those that the stack holds are deleted first.

        Returns when all have ended. Raises InfraError where the settings can't be read or written.
        """
        move(self.environment, places, self.root)
        nodes = list(places)
        held = known(self.environment, self.root)
        again = [self._urn(node) for node in nodes if node in held]
        # One zone without capacity must not keep the members in others from coming back.
        return self._heard(
            nodes,
            _MADE,
            lambda hear: self._stack.up(
                replace=again, target=self._targets(nodes), continue_on_error=True, on_event=hear
            ),
        )

    def remove(self, nodes: Sequence[str]) -> Outcome:
        """Deletes members."""
        return self._heard(
            nodes,
            _GONE,
            lambda hear: self._stack.destroy(
                target=self._targets(nodes), continue_on_error=True, on_event=hear
            ),
        )

    def _urn(self, node: str) -> str:
        return names.node_urn(self.environment, node)

    def _targets(self, nodes: Sequence[str]) -> list[str]:
        """Nodes and the slices that hold them: what isn't in the stack yet needs its parent made, too."""
        return [urn for node in nodes for urn in (names.slice_urn(self.environment, node), self._urn(node))]

    def _heard(
        self, nodes: Sequence[str], wanted: frozenset[str], update: Callable[[automation.OnEvent], object]
    ) -> Outcome:
        """Runs an update; fine is only what Pulumi says was done."""
        words: dict[str, list[str]] = {}
        done: set[str] = set()

        def hear(event: automation.EngineEvent) -> None:
            said, ended = event.diagnostic_event, event.res_outputs_event
            if said and said.severity == "error":
                words.setdefault(said.urn or "", []).append(said.message.strip())
            if ended and ended.metadata.op in wanted:
                done.add(ended.metadata.urn)

        whole = ""
        try:
            update(hear)
        except refused.ConcurrentUpdateError as error:
            cancel = f"if nothing runs any more: pulumi cancel -s {self.environment}"
            whole = f"another update of the stack is under way ({_last(error)}); {cancel}"
        except refused.CommandError as error:
            whole = _last(error)

        def outcome(urn: str) -> Failure | None:
            if urn in done:
                return None
            if urn in words:
                return classify(" ".join(words[urn]))
            return Failure(Kind.STACK, " ".join(words.get("", [])) or whole or "Pulumi said nothing of it")

        return {node: outcome(self._urn(node)) for node in nodes}


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "no word")


def main(arguments: Sequence[str]) -> int:
    """One update, and its outcome as the last line."""
    environment, verb, *words = arguments
    places = {node: zone for node, _, zone in (word.partition("=") for word in words)}
    nodes = list(places)
    try:
        stack = Stack(environment)
        outcome = stack.bring(places) if verb == "bring" else stack.remove(nodes)
    except InfraError as error:
        outcome = dict.fromkeys(nodes, Failure(Kind.STACK, str(error)))
    print(json.dumps({node: asdict(one) if one else None for node, one in outcome.items()}))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PULUMI_SKIP_UPDATE_CHECK", "true")
    sys.exit(main(sys.argv[1:]))
