"""Errors for users, with their fixes.

Every error of this package is an `InfraError`. The program and the commands print it and
stop with a non-zero status; a traceback means a defect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class InfraError(Exception):
    """Error with its fix."""


class UpstreamError(InfraError):
    """A layer needs another one that isn't up."""


class BundleError(InfraError):
    """The bundle that the hosts would install isn't in the bucket, or can't be looked up."""


class CommandError(InfraError):
    """The Pulumi CLI is missing or failed."""


class UpdateError(CommandError):
    """An update by the Pulumi CLI failed; `errors`: its messages of each resource, by URN."""

    def __init__(self, text: str, errors: Mapping[str, Sequence[str]]):
        self.errors = errors
        super().__init__(text)


@dataclass(frozen=True, order=True)
class Problem:
    """A problem with the settings: key path, value, rule, fix."""

    path: str
    found: str
    rule: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}. Rule: {self.rule}. Fix: {self.fix}."


def listed(source: str, problems: Sequence[object]) -> str:
    """Format all problems, each on a line, below a line that counts them."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{count} in {source}:", *(f"  {problem}" for problem in problems)])


class SettingsError(InfraError):
    """Problems of one environment's settings."""

    def __init__(self, source: str, problems: Sequence[Problem]):
        self.source = source
        self.problems = tuple(problems)
        super().__init__(listed(source, self.problems))


class LayersError(InfraError):
    """Problems of the layers' declarations."""

    def __init__(self, problems: Sequence[Problem]):
        super().__init__(listed("the layers of infra/", sorted(problems)))
