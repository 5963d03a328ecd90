"""Errors of a run's storage."""

from workload.errors import StoreError


class MissingObjectError(StoreError):
    """No object of that name."""
