"""Fault rules: failures by request, time and count, and the counts of those that occurred.

A rule is JSON, a line of a scenario or the body of `POST /faults`:

    {"match": {"method": "tpu.*.nodes.create", "host": "*", "path": "/nodes", "query": "", "principal": "*"},
     "when": {"after": 2},       # or {"probability": 0.1, "seed": 7}; and/or {"at_s": 60, "for_s": 600}:
                                 # virtual seconds from the rule's making, and how long from then on
     "times": 1,                 # left out: without end
     "what": {"status": 429, "retry_after_s": 2}}

`method`, `host` and `principal` are globs, `path` and `query` regular expressions that are searched for.
`what` is one of `{"status": 429, "message"?, "retry_after_s"?}`, `{"reset": true}` (close without an answer),
`{"lost_answer": true}` (do it, then close), `{"delay_s": 1.5}` (real seconds), `{"truncated": true}` (close
in the middle of the answer's body), `{"lost": true}` (of a delivery of an event, which is never made:
services/eventarc/deliveries.py), `{"operation_error": {"code": "RESOURCE_EXHAUSTED", "message"?}}` (of the
operation that the request starts; a request that starts none is let through and not counted).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.operations import RPC_CODES
from rehearsal.cloud.core.world import Clock
from rehearsal.errors import RehearsalError

_CANONICAL = {
    400: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_KEYS = {
    "rule": {"match", "when", "times", "what"},
    "match": {"method", "host", "path", "query", "principal"},
    "when": {"after", "at_s", "for_s", "probability", "seed"},
    "what": {
        "status",
        "message",
        "retry_after_s",
        "reset",
        "lost_answer",
        "delay_s",
        "truncated",
        "operation_error",
        "lost",
    },
}
_DELIVERIES = "eventarc."  # what can be lost


class FaultError(RehearsalError):
    """An invalid rule; the message names the key, its value and the valid values."""


class LostError(Exception):
    """An event is lost: no attempt is made to deliver it."""


@dataclass(frozen=True)
class Fault:
    """The effects of a rule on one request."""

    rule_id: str
    error: ApiError | None = None
    retry_after_s: float | None = None
    reset: bool = False
    lost_answer: bool = False
    truncated: bool = False
    delay_s: float = 0.0
    lost: bool = False
    operation_error: ApiError | None = None


@dataclass
class _Rule:
    source: JsonObject
    fault: Fault
    method: str
    host: str
    path: re.Pattern[str]
    query: re.Pattern[str]
    principal: str
    times: int | None
    after: int = 0
    from_s: float = float("-inf")
    until_s: float = float("inf")
    probability: float = 1.0
    random: random.Random = field(default_factory=random.Random)
    matched: int = 0
    observed: int = 0

    def hits(self, method_id: str, host: str, path: str, query: str, principal: str, now: float) -> bool:
        """Count a matching request; return True if the fault applies to it."""
        if not self.from_s <= now < self.until_s or not (
            fnmatchcase(method_id, self.method)
            and fnmatchcase(host, self.host)
            and fnmatchcase(principal, self.principal)
            and self.path.search(path)
            and self.query.search(query)
        ):
            return False
        self.matched += 1
        if self.times is not None and self.observed >= self.times:
            return False
        if self.matched <= self.after:
            return False
        if self.probability < 1 and self.random.random() >= self.probability:
            return False
        self.observed += 1
        return True


class Faults:
    """The rules in force. The first that strikes a request decides."""

    def __init__(self, clock: Clock, seed: int = 0) -> None:
        """`seed` is for rules with a probability and no seed of their own."""
        self._clock = clock
        self._seed = seed
        self._rules: dict[str, _Rule] = {}
        self._ids = itertools.count(1)

    def add(self, rule: JsonObject) -> str:
        """Put a rule in force and return its id; FaultError if it cannot be."""
        rule_id = f"fault-{next(self._ids)}"
        self._rules[rule_id] = _parse(rule, rule_id, self._clock.now(), self._seed)
        return rule_id

    def lift(self, rule_id: str) -> int:
        """Remove a rule; return its count of observations."""
        return self._rules.pop(rule_id).observed

    def inject(self, method_id: str, host: str, path: str, principal: str, query: str = "") -> Fault | None:
        """Return the fault for this request, if any."""
        now = self._clock.now() if self._rules else 0.0
        for rule in self._rules.values():
            if rule.hits(method_id, host, path, query, principal, now):
                return rule.fault
        return None

    def missed(self, fault: Fault) -> None:
        """Revert an injection that had no effect: the next matching request gets it."""
        if fault.rule_id in self._rules:
            self._rules[fault.rule_id].observed -= 1

    def report(self) -> list[JsonObject]:
        """Return every rule with its id and its counts of matches and observations."""
        return [
            {"id": rule_id, **rule.source, "matched": rule.matched, "observed": rule.observed}
            for rule_id, rule in self._rules.items()
        ]


def _parse(source: JsonObject, rule_id: str, now: float, seed: int) -> _Rule:
    _check_keys("rule", source)
    match = _check_keys("match", source.get("match", {}))
    when = _check_keys("when", source.get("when", {}))
    what = _check_keys("what", source.get("what", {}))
    times = source.get("times")
    if times is not None and (not isinstance(times, int) or times < 1):
        raise FaultError(f"times: {times!r} must be a whole number of at least 1, or left out")
    if {"after", "probability"} <= when.keys():
        raise FaultError(f"when: {when!r} must have one of after and probability")
    path, query = _pattern(match, "path"), _pattern(match, "query")
    if "lost" in what and not match.get("method", "").startswith(_DELIVERIES):
        raise FaultError(f"what.lost: only deliveries can be lost, with a match.method of {_DELIVERIES}…")
    from_s = now + float(when.get("at_s", 0))
    return _Rule(
        source=source,
        fault=_parse_what(what, rule_id),
        method=match.get("method", "*"),
        host=match.get("host", "*"),
        path=path,
        query=query,
        principal=match.get("principal", "*"),
        times=times,
        after=int(when.get("after", 0)),
        from_s=from_s,
        until_s=from_s + float(when.get("for_s", "inf")),
        probability=float(when.get("probability", 1.0)),
        random=random.Random(when.get("seed", seed)),
    )


def _pattern(match: JsonObject, key: str) -> re.Pattern[str]:
    try:
        return re.compile(match.get(key, ""))
    except re.error as error:
        raise FaultError(f"match.{key}: {match[key]!r} is not a regular expression: {error}") from None


def _parse_what(what: JsonObject, rule_id: str) -> Fault:
    kinds = what.keys() - {"message", "retry_after_s"}
    if len(kinds) != 1:
        choices = ", ".join(sorted(_KEYS["what"] - {"message", "retry_after_s"}))
        raise FaultError(f"what: {what!r} must have exactly one of {choices}")
    kind = kinds.pop()
    if kind == "status":
        code = what["status"]
        if code not in _CANONICAL:
            raise FaultError(f"what.status: {code!r} must be one of {sorted(_CANONICAL)}")
        error = ApiError(code, _CANONICAL[code], what.get("message", f"Injected by {rule_id}."))
        return Fault(rule_id, error=error, retry_after_s=what.get("retry_after_s"))
    if kind == "delay_s":
        return Fault(rule_id, delay_s=float(what["delay_s"]))
    if kind == "operation_error":
        return Fault(rule_id, operation_error=_operation_error(what["operation_error"], rule_id))
    return Fault(
        rule_id,
        reset=kind == "reset",
        lost_answer=kind == "lost_answer",
        truncated=kind == "truncated",
        lost=kind == "lost",
    )


def _operation_error(error: Mapping[str, Any], rule_id: str) -> ApiError:
    """Return the error by canonical name or by google.rpc code: `RESOURCE_EXHAUSTED` or 8."""
    code = error.get("code")
    name = code if code in RPC_CODES else next((n for n, value in RPC_CODES.items() if value == code), None)
    if name is None:
        raise FaultError(
            f"what.operation_error.code: {code!r} must be a google.rpc code such as {list(RPC_CODES)[7]}"
        )
    return ApiError(500, name, error.get("message", f"Injected by {rule_id}."))


def _check_keys(kind: str, value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise FaultError(f"{kind}: {value!r} must be an object with keys of {sorted(_KEYS[kind])}")
    if unknown := value.keys() - _KEYS[kind]:
        raise FaultError(f"{kind}: unknown {sorted(unknown)}; the keys are {sorted(_KEYS[kind])}")
    return value
