"""Interface of a provider that is served as a plugin: one method per call of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A property that differs: `path` as Pulumi spells it, `name` of the top-level property."""

    path: str
    name: str
    kind: str  # "ADD", "UPDATE" or "DELETE"
    replaces: bool


@dataclass(frozen=True)
class Diff:
    """The engine's question "what would an update do?" answered."""

    differences: list[Difference]
    delete_first: bool

    @property
    def replaces(self) -> list[str]:
        """Properties that can't be changed in place."""
        return sorted({d.name for d in self.differences if d.replaces})


@dataclass(frozen=True)
class Checked:
    """Inputs with defaults filled in, and what is wrong with them: pairs of property and sentence."""

    inputs: dict[str, Any]
    failures: list[tuple[str, str]]


class Provider(Protocol):
    """A provider; `token` names a resource's type, `state` are outputs of before, `before` their inputs.

    Errors are StandInError and its kinds; a timeout of 0 seconds is the type's own.
    """

    package: str
    version: str

    def unknown_settings(self, given: Values) -> list[str]:
        """Names of settings that would have no effect."""

    def replacing_settings(self, olds: Values, news: Values) -> list[str]:
        """Names of settings whose change replaces all resources of the provider."""

    def configure_from(self, given: Values) -> None:
        """Take the settings."""

    def cancel(self) -> None:
        """Stop waiting: whatever is under way fails at its next pause."""

    def check(self, token: str, news: Values, olds: Values, name: str, seed: bytes) -> Checked:
        """Return the inputs with their defaults, and their defects."""

    def diff(
        self,
        token: str,
        state: Values,
        news: Values,
        ignored: Sequence[str] = (),
        before: Values | None = None,
    ) -> Diff:
        """Return the differences between `state` and `news` (checked inputs)."""

    def create(
        self, token: str, inputs: Values, *, preview: bool = False, timeout_s: float = 0
    ) -> tuple[str, dict[str, Any]]:
        """Make a resource: its id ("" in a preview) and outputs."""

    def read(self, token: str, id_: str, state: Values, *, timeout_s: float = 0) -> dict[str, Any] | None:
        """Return a resource's current outputs; None if it is gone."""

    def update(
        self,
        token: str,
        id_: str,
        state: Values,
        news: Values,
        *,
        ignored: Sequence[str] = (),
        before: Values | None = None,
        preview: bool = False,
        timeout_s: float = 0,
    ) -> dict[str, Any]:
        """Change a resource: its outputs after it."""

    def delete(self, token: str, id_: str, state: Values, *, timeout_s: float = 0) -> None:
        """Remove a resource."""

    def inputs_of(self, token: str, outputs: Values, before: Values | None = None) -> dict[str, Any]:
        """Return the inputs that go with `outputs` just read; `before`: the state's, None for an import."""

    def invoke(self, token: str, arguments: Values) -> dict[str, Any]:
        """Answer a look-up."""
