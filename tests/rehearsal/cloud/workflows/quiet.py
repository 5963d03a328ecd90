"""Surroundings of a definition without requests: its time passes at once, replies come in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.cloud.services.workflows.engine import HttpRequest, Interpreter, Reply, parse


@dataclass
class Quiet:
    """`replies`: what requests are answered, each once; an exception is raised."""

    replies: list[Any] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=lambda: {"GOOGLE_CLOUD_LOCATION": "us-east5"})
    slept: list[float] = field(default_factory=list)
    sent: list[HttpRequest] = field(default_factory=list)
    lines: list[tuple[str, Any]] = field(default_factory=list)

    def now(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def send(self, request: HttpRequest) -> Reply:
        self.sent.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        status, body = reply
        return Reply(status, {"Content-Type": "application/json"}, json.dumps(body).encode())

    async def log(self, severity: str, payload: Any) -> None:
        self.lines.append((severity, payload))


def run(source: str, argument: Any = None, outside: Quiet | None = None) -> Any:
    """Return the definition's result."""
    return asyncio.run(Interpreter(parse(source), outside or Quiet()).run(argument))


def value(expression: str, **variables: Any) -> Any:
    """Return the value of an expression, with these variables."""
    quoted = json.dumps("${" + expression + "}")
    names = "".join(f"    - v_{name}: {{assign: [{{{name}: '${{args.{name}}}'}}]}}\n" for name in variables)
    source = f"main:\n  params: [args]\n  steps:\n{names}    - end_: {{return: {quoted}}}\n"
    return run(source, variables)
