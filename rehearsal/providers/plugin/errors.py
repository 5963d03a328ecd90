"""Errors of the stand-ins, each one sentence for the user."""

from __future__ import annotations

from rehearsal.errors import RehearsalError


class StandInError(RehearsalError):
    """A request that the stand-in can't serve; `str()` has it and the reason."""


class UnsupportedError(StandInError):
    """A resource type, property or call that the stand-in doesn't know."""


class ProviderApiError(StandInError):
    """Google's answer was an error; `status` is the HTTP status (or the operation's own code)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class OperationError(StandInError):
    """A long-running operation ended in an error: what it was to make doesn't exist for us."""


class CreatedButError(StandInError):
    """The resource exists but a later step failed; the engine must keep `id` and `outputs`."""

    def __init__(self, message: str, id_: str, outputs: dict[str, object]) -> None:
        super().__init__(message)
        self.id = id_
        self.outputs = outputs
