"""One update of the slices' stack, in a process of its own: which members, and what became of each.

What lives at Google without the stack is taken in first (fleet/adopt.py), and what a killed update left
behind, its lock and its record of a creation, is put aside. An update works on all of its members beside one
another, and is told what it may touch, by URN: the rest of the stack stays as it is.

    python -m fleet.stack dev bring tpu-us-east5-b-0=us-east5-b=    prints its outcome as JSON

Behind the second `=` stands the number of the node that may be deleted though it lives.
"""

import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pulumi import automation
from pulumi.automation import errors as refused

from fleet import adopt
from fleet.books import runs
from fleet.failures import Failure, Kind, classify
from fleet.google import Google
from fleet.provision import LAYER, Outcome, known, move, placed, require
from fleet.state import ON_THE_WAY, TAKEN_AWAY, Place, Seen
from infra import names
from infra.cli import Pulumi
from infra.errors import InfraError
from infra.nodes import nodes as nodes_of
from infra.settings import from_file
from infra.settings.sources import ROOT

_MADE = frozenset({automation.OpType.CREATE, automation.OpType.CREATE_REPLACEMENT})
_GONE = frozenset({automation.OpType.DELETE})
_UNWANTED = "the settings don't list it any more"


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

    def bring(self, places: Mapping[str, Place]) -> Outcome:
        """Creates members, each at its place, and returns when all have ended.

        What is left of them is deleted first. A node that lives, and isn't the one that its place names, is
        left alone: None stands for it, and the stack holds it then. Raises InfraError where the settings
        can't be read or written.
        """
        settings = from_file(self.environment, self.root)
        wanted = {one.name for one in nodes_of(settings)}
        outcome: Outcome = {node: Failure(Kind.INVALID, _UNWANTED) for node in places if node not in wanted}
        outcome |= self._take_in([node for node in places if node not in outcome], {"READY"})
        held = placed(self.environment, self.root)
        google = Google(settings.gcp.project, settings.storage.bucket_name)
        left = {node: place for node, place in places.items() if node not in outcome}
        outcome |= adopt.alive(left, held, google)
        # Not `--replace`: an update that goes on after errors never ends where such a deletion fails.
        again = [node for node in left if node in held and node not in outcome]
        gone = self._heard(again, _GONE, lambda hear: self._destroy([*map(self._urn, again)], hear))
        outcome |= {node: failure for node, failure in gone.items() if failure}
        due = [node for node in places if node not in outcome]
        move(self.environment, {node: places[node].zone for node in due}, self.root)
        # One zone without capacity must not keep the members in others from coming back.
        return outcome | self._heard(
            due,
            _MADE,
            lambda hear: self._stack.up(target=self._targets(due), continue_on_error=True, on_event=hear),
        )

    def remove(self, nodes: Sequence[str]) -> Outcome:
        """Deletes members, also those that live at Google without the stack."""
        refusals = self._take_in(nodes, {"READY", *ON_THE_WAY})
        left = [node for node in nodes if node not in refusals]
        return refusals | self._heard(left, _GONE, lambda hear: self._destroy(self._targets(left), hear))

    def _destroy(self, urns: Sequence[str], hear: automation.OnEvent) -> None:
        self._stack.destroy(target=[*urns], continue_on_error=True, on_event=hear)

    def _take_in(self, nodes: Sequence[str], alive: Collection[str]) -> Outcome:
        """Has the stack hold members that are at Google without it, in these states or taken away.

        The outcome names those that it couldn't take.
        """
        held = known(self.environment, self.root)
        missing = [node for node in nodes if node not in held]
        if not missing:
            return {}
        settings = from_file(self.environment, self.root)
        google = Google(settings.gcp.project, settings.storage.bucket_name)
        labels = names.labels(self.environment, LAYER)
        # One that lives in another zone than its own is nobody's: taken in, it would be moved by deleting it.
        zones = {one.name: one.zone for one in nodes_of(settings)}
        there = [
            one
            for one in adopt.strays(missing, google, sorted({zones[node] for node in missing}))
            if zones[one.name] == one.zone
        ]
        found = {one.name: adopt.refusal(one, labels, {*alive, *TAKEN_AWAY}) for one in there}
        some = [one for one in there if found[one.name] is None]
        if some:
            try:
                self._unlocked(lambda: self._import(some, settings.gcp.project))
            except refused.CommandError as error:
                found |= {one.name: Failure(Kind.STACK, _last(error)) for one in some}
        return {node: failure for node, failure in found.items() if failure}

    def _import(self, some: Sequence[Seen], project: str) -> None:
        """Takes nodes into the stack as they are, unprotected, as the program declares them.

        Their slices are made first where the stack hasn't any: they are no more than names in it.
        """
        state = {one["urn"] for one in Pulumi(self.environment, self.root).state(LAYER)}
        parents = [names.slice_urn(self.environment, one.name) for one in some]
        if not {names.provider_urn(self.environment), *parents} <= state:
            self._stack.up(target=parents)
        environment = self.environment
        table = {"gcp": names.provider_urn(environment)}
        table |= {f"slice-{one.name}": names.slice_urn(environment, one.name) for one in some}
        resources: list[Any] = [
            {
                "type": names.NODE_TYPE, "name": one.name, "id": names.node_id(project, one.zone, one.name),
                "parent": f"slice-{one.name}", "provider": "gcp",
            }
            for one in some
        ]  # fmt: skip
        self._stack.import_resources(
            resources=resources, name_table=table, protect=False, generate_code=False
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
        if not nodes:
            return {}
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
            self._unlocked(lambda: update(hear))
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

    def _unlocked(self, update: Callable[[], object]) -> None:
        """Runs an update; the lock of one whose process is gone doesn't keep it from beginning."""
        try:
            update()
        except refused.ConcurrentUpdateError as error:
            if not _abandoned(str(error)):
                raise
            self._stack.cancel()
            self._forget_creations()
            update()

    def _forget_creations(self) -> None:
        """Drops the records of creations that a killed update left; what came of them is seen at Google."""
        self._stack.refresh(target=[names.stack_urn(self.environment)], clear_pending_creates=True)


def _abandoned(said: str) -> bool:
    """Whether all locks that Pulumi names are of processes of this user on this machine that are gone."""
    locks = re.findall(r"created by (\S+)@(\S+) \(pid (\d+)\)", said)
    mine = (getpass.getuser(), socket.gethostname())
    return bool(locks) and all((user, host) == mine and not runs(int(pid)) for user, host, pid in locks)


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = (line for line in lines if "error:" in line or "panic:" in line)
    return next(told, lines[-1] if lines else "no word")


def main(arguments: Sequence[str]) -> int:
    """One update, and its outcome as the last line."""
    environment, verb, *words = arguments
    places = {node: Place(*place) for node, *place in (word.split("=") for word in words) if place}
    nodes = list(places) or words
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
