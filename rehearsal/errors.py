"""The one family of exceptions that the rehearsal's commands show to people, without a traceback."""

from __future__ import annotations


class RehearsalError(Exception):
    """Something that a user can mend: `str()` says what is wrong, `fix` what to do next."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class WorldError(RehearsalError):
    """The world can't be made, entered or ended."""


class ScenarioError(RehearsalError):
    """A scenario file breaks a rule; the message holds every problem with its key path."""


class ScenarioFailed(RehearsalError):  # noqa: N818 - the outcome of a run, not of the program
    """A step of the scenario didn't end as it says it must."""
