"""The errors of publishing."""

from __future__ import annotations

from infra.errors import InfraError

__all__ = ["PublishError"]


class PublishError(InfraError):
    """A part of the bundle can't be had, or the bucket can't take it."""
