"""Brings members up and down in the stack that `pulumi up` works on, so that the two never disagree.

What lives at Google without the stack is taken in first (fleet/adopt.py), and what a killed update left
behind, its lock and its record of a creation, is put aside. One update works on all of its members beside
one another. Pulumi locks a stack while it changes, so two updates never overlap; each is told what it may
touch, by URN, and the rest of the stack stays as it is. An update runs in a process of its own, out of
reach of Ctrl+C: it is never left half done.

    python -m fleet.provision dev bring tpu-us-east5-b-0    prints its outcome as JSON
"""

import getpass
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from pulumi import automation
from pulumi.automation import errors as refused

from fleet import adopt
from fleet.failures import Failure, Kind, classify
from fleet.google import Google
from fleet.state import ON_THE_WAY, TAKEN_AWAY, Seen
from infra import names
from infra.cli import Pulumi
from infra.errors import CommandError, InfraError
from infra.nodes import zones
from infra.settings.sources import ROOT, from_file

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

    def bring(self, nodes: Sequence[str]) -> Outcome:
        """Creates members, and returns when all have ended.

        Those that the stack holds are deleted first; those that live at Google without it, it holds then.
        """
        taken = self._take_in(nodes, {"READY"})
        left = [node for node in nodes if node not in taken]
        held = known(self.environment, self.root)
        # Not `--replace`: an update that goes on after errors never ends where such a deletion fails.
        again = [node for node in left if node in held]
        gone = self._heard(again, _GONE, lambda hear: self._destroy([*map(self._urn, again)], hear))
        there = {node: failure for node, failure in gone.items() if failure}
        due = [node for node in left if node not in there]
        # One zone without capacity must not keep the members in others from coming back.
        made = self._heard(
            due,
            _MADE,
            lambda hear: self._stack.up(target=self._targets(due), continue_on_error=True, on_event=hear),
        )
        return taken | there | made

    def remove(self, nodes: Sequence[str]) -> Outcome:
        """Deletes members, also those that live at Google without the stack."""
        taken = self._take_in(nodes, {"READY", *ON_THE_WAY})
        refusals = {node: failure for node, failure in taken.items() if failure}
        left = [node for node in nodes if node not in refusals]
        return refusals | self._heard(left, _GONE, lambda hear: self._destroy(self._targets(left), hear))

    def _destroy(self, urns: Sequence[str], hear: automation.OnEvent) -> None:
        self._stack.destroy(target=[*urns], continue_on_error=True, on_event=hear)

    def _take_in(self, nodes: Sequence[str], alive: Collection[str]) -> Outcome:
        """Members in these states that live at Google without the stack: None where it holds them now.

        What Google has taken away it holds then, too, but such aren't in the outcome.
        """
        held = known(self.environment, self.root)
        missing = [node for node in nodes if node not in held]
        if not missing:
            return {}
        settings = from_file(self.environment, self.root)
        google = Google(settings.gcp.project, settings.storage.bucket_name)
        labels = names.labels(self.environment, LAYER)
        there = adopt.strays(missing, google, zones(settings))
        found = {one.name: adopt.refusal(one, labels, {*alive, *TAKEN_AWAY}) for one in there}
        some = [one for one in there if found[one.name] is None]
        if some:
            try:
                self._unlocked(lambda: self._import(some, settings.gcp.project))
            except refused.CommandError as error:
                found |= {one.name: Failure(Kind.STACK, _last(error)) for one in some}
        # The list may be older than the node: what the import read of it says whether it may be replaced.
        read = {
            one["urn"]: one.get("outputs", {}).get("state")
            for one in Pulumi(self.environment, self.root).state(LAYER)
        }
        gone = {one.name for one in some if read.get(self._urn(one.name)) in TAKEN_AWAY}
        return {node: failure for node, failure in found.items() if failure or node not in gone}

    def _import(self, some: Sequence[Seen], project: str) -> None:
        """Their slices are made first where the stack hasn't any: they are no more than names in it."""
        state = {one["urn"] for one in Pulumi(self.environment, self.root).state(LAYER)}
        parents = [names.slice_urn(self.environment, one.name) for one in some]
        if not {names.provider_urn(self.environment), *parents} <= state:
            self._stack.up(target=parents)
        adopt.take_in(self._stack, project, some)

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
    return bool(locks) and all((user, host) == mine and not _runs(int(pid)) for user, host, pid in locks)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


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


def asked(environment: str) -> frozenset[str] | None:
    """Members that the stack holds; None where Pulumi doesn't say."""
    try:
        return known(environment)
    except InfraError:
        return None


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = (line for line in lines if "error:" in line or "panic:" in line)
    return next(told, lines[-1] if lines else "no word")


class Updates:
    """Updates in processes of their own, one at a time."""

    def __init__(self, environment: str):
        require(environment)
        self._environment = environment
        self._running: tuple[tuple[str, ...], subprocess.Popen[bytes], IO[bytes]] | None = None
        self._held: frozenset[str] | None = None

    def held(self) -> frozenset[str] | None:
        """Members that the stack held when the last update had ended; None where nobody can say."""
        if self._held is None and self._running is None:
            self._held = asked(self._environment)
        return self._held

    def start(self, nodes: Sequence[str]) -> None:
        """Begins to create members, deleting first those that the stack holds."""
        self._start("bring", nodes)

    def remove(self, nodes: Sequence[str]) -> None:
        """Begins to delete members."""
        self._start("remove", nodes)

    def _start(self, verb: str, nodes: Sequence[str]) -> None:
        assert self._running is None, "one update at a time"
        answer = tempfile.TemporaryFile()  # noqa: SIM115 - read once the child has ended
        line = [sys.executable, "-m", "fleet.provision", self._environment, verb, *nodes]
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
        self._running = self._held = None
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
    environment, verb, *nodes = arguments
    try:
        stack = Stack(environment)
        outcome = stack.bring(nodes) if verb == "bring" else stack.remove(nodes)
    except InfraError as error:
        outcome = dict.fromkeys(nodes, Failure(Kind.STACK, str(error)))
    print(json.dumps({node: asdict(one) if one else None for node, one in outcome.items()}))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PULUMI_SKIP_UPDATE_CHECK", "true")
    sys.exit(main(sys.argv[1:]))
