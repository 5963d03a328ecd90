"""Errors for users, with their fixes.

Every error of this package is an `InfraError`. The program prints it and stops; the commands exit with its
`status` (docs/reference/cli.md). A traceback means a defect.
"""

from collections.abc import Mapping, Sequence

from settings_schema.problem import Problem as Problem
from settings_schema.problem import listed as listed


class InfraError(Exception):
    """Error with its fix."""

    status = 1


class UpstreamError(InfraError):
    """A layer needs another one that isn't up."""


class BundleError(InfraError):
    """The bundle that the hosts would install isn't in the bucket, or can't be looked up."""


class CommandError(InfraError):
    """The Pulumi CLI is missing or failed."""


class InputError(CommandError):
    """A request that can't succeed as it was typed or written; nothing was done."""

    status = 2


class UpdateError(CommandError):
    """An update by the Pulumi CLI failed; `errors`: its messages of each resource, by URN."""

    def __init__(self, text: str, errors: Mapping[str, Sequence[str]]):
        self.errors = errors
        super().__init__(text)


class SettingsError(InfraError):
    """Problems of one environment's settings."""

    status = 2

    def __init__(self, source: str, problems: Sequence[Problem]):
        self.source = source
        self.problems = tuple(problems)
        super().__init__(listed(source, self.problems))


class LayersError(InfraError):
    """Problems of the layers' declarations."""

    def __init__(self, problems: Sequence[Problem]):
        super().__init__(listed("the layers of infra/", sorted(problems)))
