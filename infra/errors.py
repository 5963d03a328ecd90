"""Errors for users, with their fixes.

Every error of this package is an `InfraError`. The program and the commands print it and
stop with a non-zero status; a traceback means a defect.
"""

from collections.abc import Mapping, Sequence

from settings_schema.problem import Problem as Problem
from settings_schema.problem import listed as listed


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
