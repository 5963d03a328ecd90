"""`pulumi up` and `pulumi destroy` of each layer, killed at each of their requests, and what comes after."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.engine.registry import layers
from tests.infra.lab import RETAINED, SETTINGS, Lab

LAYERS = tuple(item.name for item in layers() if item.always_on or f"  {item.name}:" in SETTINGS)
"""Those that the lab's settings switch on."""
# What a settling says of a resource, and its column.
_SAID = {
    "made, and imported": "taken_in",
    "never made; its record is dropped": "dropped",
    "gone, and taken out of the state": "gone",
    "still there": "still_there",
    "read again": "read_again",
}
_WITHOUT_ASKING = ("--yes", "--skip-preview")


@dataclass(frozen=True)
class Case:
    """A command that was killed at a request, and the next one.

    Attributes:
        request: at which; empty where the command had ended before.
        settled: what the next command says that it found and did.
        took_s: the next command.
    """

    layer: str
    verb: str
    at: int
    then: str
    request: str
    settled: tuple[str, ...]
    took_s: float


class Updates:
    """A lab in which one layer comes and goes, on those that it needs."""

    def __init__(self, folder: Path, layer: str) -> None:
        self.lab, self.layer = Lab(folder), layer
        for entry in itertools.takewhile(lambda item: item != layer, LAYERS):
            self.lab.infra("up", "dev", entry, *_WITHOUT_ASKING)
            if entry == "storage":
                self.lab.publish()
        self._below = self.lab.living()
        self.lab.pulumi(layer, "stack", "init", "dev")
        self.requests = {"up": self.lab.count(self._line("up"))}
        assert self._held(), "nothing was made"
        self._unprotect()
        self.requests["destroy"] = self.lab.count(self._line("destroy"))
        self._clean()

    def close(self) -> None:
        """End the lab."""
        self.lab.close()

    def cases(self, every: int = 1) -> Iterator[Case]:
        """Kills at every, or every so manieth, request; both commands come after both."""
        for at in range(0, max(self.requests.values()) + 1, every):
            up, destroy = (at <= self.requests[verb] for verb in ("up", "destroy"))
            if up:
                yield self.case("up", at, "destroy")
                yield self.case("up", at, "up")
            else:
                self.lab.run(*self._line("up"))
            if destroy:
                yield self.case("destroy", at, "up")
                yield self.case("destroy", at, "destroy")
            else:
                self._unprotect()
                self.lab.run(*self._line("destroy"))
                self._clean()

    def case(self, verb: str, at: int, then: str) -> Case:
        """Kill `verb` at a request, run `then`, and hold what is at Google against the state."""
        if verb == "destroy":
            self._unprotect()
        request = self.lab.killed(self._line(verb), at)
        assert self.lab.locked(self.layer) is bool(request), "a killed command leaves its lock"
        begun = time.monotonic()
        if then == "destroy" and self.layer == "storage":
            output = self.lab.infra("settle", "dev", self.layer)
            self._unprotect()
            output += self.lab.infra("down", "dev", self.layer, *_WITHOUT_ASKING)
        else:
            output = self._settled() if then == "up" else ""
            output += self.lab.infra(then, "dev", self.layer, *_WITHOUT_ASKING)
        took_s = round(time.monotonic() - begun, 1)
        assert "stack rm" not in output, output
        assert self.lab.living() - self._below - self._kept(then) == self._held() - self._kept(then), output
        if then == "up":
            self.lab.pulumi(self.layer, "preview", "-s", "dev", "--expect-no-changes")
            assert self._held()
        else:
            self._clean()
        settled = [line for line in output.splitlines() if line.startswith(f"{self.layer}: ")]
        return Case(self.layer, verb, at, then, request, tuple(settled), took_s)

    def _settled(self) -> str:
        """Settle: what the state holds then is as the program wants it, so that a plan only makes the rest."""
        output = self.lab.infra("settle", "dev", self.layer)
        plan = self.lab.pulumi(self.layer, "preview", "-s", "dev", "--json")
        summary = re.search(r'"changeSummary": (\{[^}]*\})', plan)
        assert summary and json.loads(summary[1]).keys() <= {"create", "same"}, f"{output}{plan}"
        return output

    def _line(self, verb: str) -> list[str]:
        return self.lab.line(self.layer, verb, "-s", "dev", *_WITHOUT_ASKING)

    def _held(self) -> set[str]:
        """Ids in the layer's state, but for services, which nobody makes."""
        return {
            item["id"]
            for item in self.lab.state(self.layer).get("resources") or ()
            if item["custom"] and item["type"].startswith("gcp:") and "projects/service:" not in item["type"]
        } - {None}

    def _kept(self, then: str) -> set[str]:
        """Two buckets outlive a `destroy` by design. A router's NAT is a part of the router at Google."""
        nats = {id_ for id_ in self._held() if id_.endswith("-nat")}
        return nats | (RETAINED if then == "destroy" else set())

    def _unprotect(self) -> None:
        if self.layer == "storage" and self.lab.state(self.layer).get("resources"):
            self.lab.pulumi(self.layer, "state", "unprotect", "--all", "--yes", "-s", "dev")

    def _clean(self) -> None:
        """Check that nothing of the layer lives on; delete its retained resources as a user would."""
        assert not self._held()
        if self.layer == "storage":
            for bucket in RETAINED:
                self.lab.request("DELETE", f"storage.googleapis.com/storage/v1/b/{bucket}")
        assert self.lab.living() <= self._below, self.lab.living() - self._below


def rows(cases: Sequence[Case], requests: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each command and the next one: requests, kills, and what became of what was under way."""
    result = []
    for verb in ("up", "destroy"):
        for then in ("up", "destroy"):
            several = [case for case in cases if (case.verb, case.then) == (verb, then) and case.request]
            output = Counter(
                column
                for item in several
                for line in item.settled
                for end, column in _SAID.items()
                if line.endswith(end)
            )
            result.append(
                {
                    "layer": cases[0].layer, "verb": verb, "then": then, "requests": requests[verb],
                    "kills": len(several), **{column: output[column] for column in _SAID.values()},
                    "longest_s": max((item.took_s for item in several), default=0.0),
                }
            )  # fmt: skip
    return result
