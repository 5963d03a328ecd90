"""Errors of machines."""

from __future__ import annotations

from rehearsal.errors import RehearsalError


class HostError(RehearsalError):
    """A machine, its image, a disk or the network could not be made."""
