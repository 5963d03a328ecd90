"""The errors of publishing."""

from __future__ import annotations

from infra.errors import InfraError, InputError

__all__ = ["OwnFilesError", "PublishError"]


class PublishError(InfraError):
    """A part of the bundle can't be had, or the bucket can't take it."""


class OwnFilesError(PublishError, InputError):
    """A fault of the user's own code or data, which no other machine or time would take."""
