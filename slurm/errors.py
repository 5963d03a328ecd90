"""The error of this package."""

from infra.errors import InfraError


class SlurmError(InfraError):
    """A cluster that doesn't answer as Slurm does, or a machine that can't be one of it."""
