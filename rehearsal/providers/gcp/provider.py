"""The provider as plain Python: one method per call of the engine, values instead of protobuf.

`server.py` puts it behind gRPC; the tests that replay recordings call it directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.providers.gcp import inputs as checking
from rehearsal.providers.gcp import mapping, terraform
from rehearsal.providers.gcp.api import DEFAULT_TIMEOUT_S, FIRST_BACKOFF_S, Client
from rehearsal.providers.gcp.batch import Batches
from rehearsal.providers.gcp.install import PACKAGES
from rehearsal.providers.gcp.invokes import INVOKES
from rehearsal.providers.gcp.lifecycle import Context, Resource
from rehearsal.providers.gcp.settings import Settings, unknown_settings
from rehearsal.providers.gcp.types import TYPES
from rehearsal.providers.plugin.errors import UnsupportedError
from rehearsal.providers.plugin.provider import Checked, Diff

POLL_S = 0.2  # the official provider: 10 s
WINDOW_S = 0.1  # the official provider: 3 s


class Provider:
    """A configured provider (providers/plugin/provider.py). Creating or updating needs `configure` first."""

    package = "gcp"

    def __init__(
        self, *, poll_s: float = POLL_S, window_s: float = WINDOW_S, first_backoff_s: float = FIRST_BACKOFF_S
    ) -> None:
        self._poll_s = poll_s
        self._first_backoff_s = first_backoff_s
        self._batches = Batches(window_s)
        self.version = PACKAGES[self.package].version
        self.configure(Settings())

    def unknown_settings(self, given: Mapping[str, Any]) -> list[str]:
        """Names of settings that would have no effect, and so are refused."""
        return unknown_settings(given)

    def replacing_settings(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> list[str]:
        """None: each resource's own diff finds out."""
        return []

    def configure_from(self, given: Mapping[str, Any]) -> None:
        """Take the provider's settings from its inputs and the environment."""
        self.configure(Settings.of(given))

    def configure(self, settings: Settings) -> None:
        """Take the provider's settings; connections are made when the first request is sent."""
        self._settings = settings
        self._client = Client(settings, first_backoff_s=self._first_backoff_s)

    def cancel(self) -> None:
        """Stop waiting: whatever is under way fails at its next pause."""
        self._client.cancelled.set()

    def check(
        self, token: str, news: Mapping[str, Any], olds: Mapping[str, Any], name: str, seed: bytes
    ) -> Checked:
        """Return the inputs with their defaults, and their defects."""
        return checking.check(_type(token).table, news, olds, name, seed)

    def diff(
        self,
        token: str,
        state: Mapping[str, Any],
        news: Mapping[str, Any],
        ignored: Sequence[str] = (),
        before: Mapping[str, Any] | None = None,
    ) -> Diff:
        """Return the differences between `state` (outputs, made by `before`) and `news` (checked inputs)."""
        resource = _type(token)
        differences = resource.differences(news, state, self._settings, ignored)
        replaces = {d.name for d in differences if d.replaces}
        # A fixed name can't be taken twice: then the old one has to go first.
        named = (
            resource.table.auto_name
            and news.get("name") is not None
            and ("name" not in news.get("__defaults", ()) and "name" not in replaces)
        )
        return Diff(differences, bool(replaces) and (named or resource.table.delete_before_replace))

    def create(
        self, token: str, inputs: Mapping[str, Any], *, preview: bool = False, timeout_s: float = 0
    ) -> tuple[str, dict[str, Any]]:
        """Make a resource: its id ("" in a preview) and outputs."""
        resource = _type(token)
        if preview:
            planned = mapping.plan(resource.table, inputs, {}, self._settings)
            return "", mapping.preview(resource.table, planned, {})
        return resource.create(self._context(timeout_s), inputs)

    def read(
        self, token: str, id_: str, state: Mapping[str, Any], *, timeout_s: float = 0
    ) -> dict[str, Any] | None:
        """Return a resource's current outputs; None if it is gone, or can't be imported."""
        if not state and not terraform.resource_type(token).importer:
            return None
        return _type(token).read(self._context(timeout_s), id_, state)

    def update(
        self,
        token: str,
        id_: str,
        state: Mapping[str, Any],
        news: Mapping[str, Any],
        *,
        ignored: Sequence[str] = (),
        before: Mapping[str, Any] | None = None,
        preview: bool = False,
        timeout_s: float = 0,
    ) -> dict[str, Any]:
        """Change a resource from `state` (outputs) to `news` (checked inputs): its outputs after it."""
        resource = _type(token)
        if preview:
            planned = mapping.plan(resource.table, news, state, self._settings)
            return mapping.preview(resource.table, planned, state)
        changed = {d.name for d in resource.differences(news, state, self._settings, ignored)}
        return resource.update(self._context(timeout_s), id_, news, state, changed)

    def delete(self, token: str, id_: str, state: Mapping[str, Any], *, timeout_s: float = 0) -> None:
        """Remove a resource."""
        _type(token).delete(self._context(timeout_s), id_, state)

    def inputs_of(
        self, token: str, outputs: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the previous inputs; without them, inputs that would create a resource like `outputs`."""
        if before:
            return dict(before)
        table = _type(token).table
        given = {
            f.name: outputs[f.name] for f in table.inputs if outputs.get(f.name) not in (None, "", [], {})
        }
        return {**_settable(table.inputs, given), "__defaults": []}

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a look-up such as `gcp.storage.get_bucket`."""
        if token not in INVOKES:
            raise UnsupportedError(
                f"the stand-in doesn't know the function {token!r}; it knows {', '.join(INVOKES)}"
            )
        return INVOKES[token](self._context(0), arguments)

    def _context(self, timeout_s: float) -> Context:
        return Context(
            self._client, self._settings, self._batches, self._poll_s, timeout_s or DEFAULT_TIMEOUT_S
        )


def _type(token: str) -> Resource:
    if token not in TYPES:
        known = ", ".join(TYPES)
        raise UnsupportedError(f"the stand-in doesn't know the resource type {token!r}; it knows {known}")
    return TYPES[token]


def _settable(fields: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without the nested properties that only the API sets."""
    result: dict[str, Any] = {}
    for f in fields:
        value = values.get(f.name)
        if value is None:
            continue
        if f.fields and isinstance(value, Mapping):
            value = _settable(f.fields, value)
        elif f.fields and isinstance(value, list):
            value = [_settable(f.fields, item) for item in value]
        if not f.output:
            result[f.name] = value
    return result
