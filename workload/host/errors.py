"""The errors that a host reports in its boot status; each says what to do."""

from __future__ import annotations


class HostError(Exception):
    """Something that the boot or the start of a job can't resume from."""


class MetadataError(HostError):
    """The metadata server lacks a key, holds a bad value for it, or doesn't answer."""


class StorageError(HostError):
    """Cloud Storage refused a request or didn't answer in time."""


class BarrierTimeoutError(HostError):
    """Not every worker of the slice arrived in time; the message names who is missing."""


class RunError(HostError):
    """The slice's `run` can't be made into a service."""


class CodeError(HostError):
    """The published code can't be put where it belongs."""


class LogsError(HostError):
    """Cloud Logging refused entries, or didn't answer."""
