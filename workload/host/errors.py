"""Errors of a host; its boot status shows the message, which names the fix."""

from __future__ import annotations


class HostError(Exception):
    """Fatal error of a boot or of the start of a job."""


class MetadataError(HostError):
    """The metadata server lacks a key, holds an invalid value, or doesn't answer."""


class StorageError(HostError):
    """Cloud Storage refused a request or didn't answer in time."""


class BarrierTimeoutError(HostError):
    """Not every worker of the slice arrived in time; the message names who is missing."""


class RunError(HostError):
    """The slice's `run` can't become a systemd unit."""


class CodeError(HostError):
    """The published code can't be installed."""


class LogsError(HostError):
    """Cloud Logging refused entries, or didn't answer."""


class PassingError(HostError):
    """A repetition may help."""
