"""The part of Workflows' language that docs/cloud.md lists, by Google's published reference.

https://cloud.google.com/workflows/docs/reference/syntax and …/docs/reference/stdlib/overview. What isn't
covered is refused when a definition is deployed; nothing of it is passed over when it runs.

    program = parse(source)                               # SourceError: what is wrong, and in which line
    result = await Interpreter(program, outside).run({"id": 1})    # Raised: what the workflow didn't catch
"""

from rehearsal.cloud.core.runtime import HttpRequest, Reply
from rehearsal.cloud.services.workflows.engine.interpreter import Interpreter
from rehearsal.cloud.services.workflows.engine.outside import Outside
from rehearsal.cloud.services.workflows.engine.source import parse
from rehearsal.cloud.services.workflows.engine.steps import Program
from rehearsal.cloud.services.workflows.engine.values import Raised, SourceError, UncoveredError

__all__ = [
    "HttpRequest",
    "Interpreter",
    "Outside",
    "Program",
    "Raised",
    "Reply",
    "SourceError",
    "UncoveredError",
    "parse",
]
