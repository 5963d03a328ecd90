"""What can be wrong; the commands print it and stop with a non-zero status."""

from infra.errors import InfraError


class FleetError(InfraError):
    """What is wrong with a fleet or a request about one, and what to do about it."""
