"""Brings members up and down in the stack that `pulumi up` works on, so that the two never disagree.

One update works on all of its members beside one another. Pulumi locks a stack while it changes, so two
updates never overlap; each is told what it may touch, by URN, and the rest of the stack stays as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pulumi import automation
from pulumi.automation import errors as refused

from fleet.errors import FleetError
from fleet.failures import Failure, classify
from infra import names
from infra.cli import Pulumi
from infra.errors import CommandError
from infra.settings.sources import ROOT

LAYER = "tpu"
Outcome = dict[str, Failure | None]
"""How an update went, by node; None where it went well."""


class Stack:
    """The slices' stack of one environment."""

    def __init__(self, environment: str, root: Path = ROOT):
        self.environment, self.root = environment, root
        if environment not in Pulumi(environment, root).stacks(LAYER):
            raise CommandError(
                f"there is no stack {environment} of {LAYER} yet\n    fix: pulumi up -s {environment}"
            )
        self._stack = automation.select_stack(stack_name=environment, work_dir=str(root))

    def urn(self, node: str) -> str:
        """Of a member's node."""
        return names.node_urn(self.environment, node)

    def known(self) -> frozenset[str]:
        """Members that the stack holds."""
        resources = Pulumi(self.environment, self.root).state(LAYER)
        mine = (one for one in resources if one["type"] == names.NODE_TYPE and not one.get("delete"))
        return frozenset(one["urn"].rpartition("::")[2] for one in mine)

    def bring(self, nodes: Sequence[str]) -> Outcome:
        """Creates members; those that the stack holds are deleted first. Returns when all have ended."""
        known = self.known()
        again = [self.urn(node) for node in nodes if node in known]
        target = [self.urn(node) for node in nodes]
        # One zone without capacity must not keep the members in others from coming back.
        return self._heard(
            nodes,
            lambda hear: self._stack.up(replace=again, target=target, continue_on_error=True, on_event=hear),
        )

    def remove(self, nodes: Sequence[str]) -> Outcome:
        """Deletes members."""
        known = self.known()
        mine = [node for node in nodes if node in known]
        target = [self.urn(node) for node in mine]
        if not mine:
            return {}
        return self._heard(
            mine, lambda hear: self._stack.destroy(target=target, continue_on_error=True, on_event=hear)
        )

    def _heard(self, nodes: Sequence[str], update: Callable[[automation.OnEvent], object]) -> Outcome:
        said: dict[str, list[str]] = {}

        def hear(event: automation.EngineEvent) -> None:
            diagnostic = event.diagnostic_event
            if diagnostic and diagnostic.severity == "error":
                node = (diagnostic.urn or "").rpartition("::")[2]
                said.setdefault(node, []).append(diagnostic.message.strip())

        failed = ""
        try:
            update(hear)
        except refused.ConcurrentUpdateError as error:
            raise FleetError(
                f"another update of the stack is under way: {_last(error)}\n    fix: wait for it,"
                f" or, if nothing runs any more, pulumi cancel -s {self.environment}"
            ) from None
        except refused.CommandError as error:
            failed = _last(error)
        return {node: _outcome(node, said, failed) for node in nodes}


def _outcome(node: str, said: Mapping[str, Sequence[str]], failed: str) -> Failure | None:
    if node in said:
        return classify(" ".join(said[node]))
    if failed and not (said.keys() - {""}):  # the update as a whole, not one member
        return classify(" ".join(said.get("", [failed])))
    return None


def _last(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return next((line.strip() for line in lines if "error:" in line), lines[-1] if lines else "no word")
