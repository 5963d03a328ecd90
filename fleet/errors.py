"""Errors of a fleet."""

from infra.errors import InfraError, InputError


class FleetError(InfraError):
    """A problem of a fleet or of a request, with its fix."""


class FleetInputError(FleetError, InputError):
    """A request that can't succeed on the fleets that there are; nothing was done."""
