"""Errors of a fleet; commands print them and exit with 1."""

from infra.errors import InfraError


class FleetError(InfraError):
    """A problem of a fleet or of a request, with its fix."""
