"""Brings members up and down in the stack that `pulumi up` works on, so that the two never disagree.

One update works on all of its members beside one another. Pulumi locks a stack while it changes, so two
updates never overlap; each is told what it may touch, by URN, and the rest of the stack stays as it is. An
update runs in a process of its own, out of reach of Ctrl+C: it is never left half done.

    python -m fleet.provision dev bring tpu-us-east5-b-0=us-east5-b    prints its outcome as JSON
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from pulumi import automation
from pulumi.automation import errors as refused

from fleet.failures import Failure, Kind, classify
from infra import names
from infra.cli import Pulumi
from infra.errors import CommandError, InfraError
from infra.nodes import nodes as all_nodes
from infra.settings import from_file
from infra.settings.record import record
from infra.settings.sources import ROOT

LAYER = "tpu"
Outcome = dict[str, Failure | None]
"""How an update went, by node; None where the node is as it was asked for."""
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


def move(environment: str, places: Mapping[str, str], root: Path = ROOT) -> None:
    """Writes into `tpu:moved` which members aren't made in the zone that their slice names."""
    settings = from_file(environment, root)
    homes = {one.name: one.home for one in all_nodes(settings)}
    moved = {**settings.tpu.moved, **places}
    abroad = {node: zone for node, zone in moved.items() if zone != homes.get(node, zone)}
    if abroad != settings.tpu.moved:
        record(environment, "tpu:moved", abroad, root)


def require(environment: str, root: Path = ROOT) -> None:
    """Raises CommandError where there is no such stack."""
    if environment not in Pulumi(environment, root).stacks(LAYER):
        fix = f"pulumi up -s {environment}"
        raise CommandError(f"there is no stack {environment} of {LAYER} yet\n    fix: {fix}")


def known(environment: str, root: Path = ROOT) -> frozenset[str]:
    """Members that the stack holds."""
    resources = Pulumi(environment, root).state(LAYER)
    mine = (one for one in resources if one["type"] == names.NODE_TYPE and not one.get("delete"))
    return frozenset(one["urn"].rpartition("::")[2] for one in mine)


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "no word")


class Updates:
    """Updates in processes of their own, one at a time."""

    def __init__(self, environment: str):
        require(environment)
        self._environment = environment
        self._running: tuple[tuple[str, ...], subprocess.Popen[bytes], IO[bytes]] | None = None

    def start(self, places: Mapping[str, str]) -> None:
        """Begins to create members, each in a zone, deleting first those that the stack holds."""
        self._start("bring", list(places), [f"{node}={zone}" for node, zone in places.items()])

    def remove(self, nodes: Sequence[str]) -> None:
        """Begins to delete members."""
        self._start("remove", nodes, nodes)

    def _start(self, verb: str, nodes: Sequence[str], words: Sequence[str]) -> None:
        assert self._running is None, "one update at a time"
        answer = tempfile.TemporaryFile()  # noqa: SIM115 - read once the child has ended
        line = [sys.executable, "-m", "fleet.provision", self._environment, verb, *words]
        child = subprocess.Popen(
            line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._running = tuple(nodes), child, answer

    def ended(self) -> Outcome | None:
        """The outcome of what was started, once; None while it runs, or where nothing was."""
        if self._running is None or self._running[1].poll() is None:
            return None
        nodes, child, answer = self._running
        self._running = None
        answer.seek(0)
        said = answer.read().decode(errors="replace")
        answer.close()
        try:
            told = json.loads(said.splitlines()[-1])
            return {node: _failure(told[node]) for node in nodes}
        except (ValueError, KeyError, IndexError, TypeError):
            last = next(reversed(said.strip().splitlines()), "")
            failure = Failure(Kind.STACK, f"the update ended with {child.returncode}: {last}")
            return dict.fromkeys(nodes, failure)


def _failure(told: dict[str, str] | None) -> Failure | None:
    return None if told is None else Failure(Kind(told["kind"]), told["message"], told["about"])


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
