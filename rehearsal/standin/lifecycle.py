"""What happens to a resource: create, read, update and delete as its table says.

Types that need more than a table (a policy's members, an object's bytes, a router's NAT) derive
from `Resource` and replace the steps that differ.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rehearsal.standin import difference, mapping, operations
from rehearsal.standin.api import DEFAULT_TIMEOUT_S, Client
from rehearsal.standin.batch import Batches
from rehearsal.standin.difference import Difference
from rehearsal.standin.errors import ApiError, CreatedButError, OperationError, StandInError
from rehearsal.standin.settings import Settings
from rehearsal.standin.table import Table, Update
from rehearsal.standin.values import has_unknown

NOT_FOUND = 404


@dataclass(frozen=True)
class Context:
    """What a step works with: the connection, the provider's settings, and its patience in seconds."""

    client: Client
    settings: Settings
    batches: Batches
    poll_s: float
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def deadline(self) -> float:
        """The end of this step's patience, on the monotonic clock."""
        return time.monotonic() + self.timeout_s


class Resource:
    """One resource type at work; holds nothing but its table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.label = table.token.rsplit(":", 1)[-1]

    # The four steps --------------------------------------------------------------------------

    def create(self, context: Context, inputs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Make the resource; returns its id and outputs.

        Raises StandInError if nothing was made, CreatedButError if it was and couldn't be finished.
        """
        planned = self.complete(context, mapping.plan(self.table, inputs, {}, context.settings))
        id_ = self.id(planned)
        try:
            self.insert(context, planned, inputs)
        except OperationError as error:
            raise StandInError(f"Error waiting to create {self.label}: {error}") from error
        except ApiError as error:
            raise StandInError(f"Error creating {self.label}: {error}") from error
        try:
            outputs = self.after_create(context, id_, planned)
        except StandInError as error:
            half = mapping.preview(self.table, planned, {"id": id_})
            known = {name: value for name, value in half.items() if not has_unknown(value)}
            raise CreatedButError(str(error), id_, known) from error
        if outputs is None:
            raise StandInError(f"Error reading {self.label} {id_!r}: it was made and is not there")
        return id_, outputs

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """The resource's outputs as they are now, or None if it is gone. `prior`: what was known."""
        known = self.known(id_, prior, context.settings)
        rest = self.get(context, known)
        return None if rest is None else mapping.outputs(self.table, rest, known, id_)

    def update(
        self,
        context: Context,
        id_: str,
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        changed: set[str],
    ) -> dict[str, Any]:
        """Send what `changed` needs (names of properties) and return the outputs after it."""
        planned = self.complete(context, mapping.plan(self.table, inputs, state, context.settings))
        try:
            for request in self.table.updates:
                if changed & set(request.fields):
                    self.patch(context, request, planned, inputs, state, changed)
            outputs = self.after_update(context, id_, planned)
        except (ApiError, OperationError) as error:
            raise StandInError(f"Error updating {self.label} {id_!r}: {error}") from error
        if outputs is None:
            raise StandInError(f"Error updating {self.label} {id_!r}: it is not there any more")
        return outputs

    def delete(self, context: Context, id_: str, state: Mapping[str, Any]) -> None:
        """Remove the resource; one that is gone already is a success."""
        match state.get("deletionPolicy"):
            case "PREVENT":
                raise StandInError(
                    f'cannot destroy {self.label} {id_!r} without setting deletionPolicy to "DELETE"'
                )
            case "ABANDON":
                return
        try:
            self.remove(context, self.known(id_, state, context.settings))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise StandInError(f"Error deleting {self.label} {id_!r}: {error}") from error
        except OperationError as error:
            raise StandInError(f"Error waiting for deleting {self.label} {id_!r}: {error}") from error

    def differences(
        self, inputs: Mapping[str, Any], state: Mapping[str, Any], settings: Settings, ignored: Sequence[str]
    ) -> list[Difference]:
        """What an update to `inputs` would change."""
        return difference.differences(self.table, inputs, state, settings, ignored)

    # What a type may do differently ------------------------------------------------------------

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Look up what the plan still lacks."""
        return planned

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Send the request that makes the resource, and wait until it is made."""
        query = {key: self._fill(value, planned) for key, value in self.table.create_query.items()}
        content = mapping.body(self.table.inputs, planned, inputs) if self.table.create_has_body else None
        self.call(
            context, "POST", self._fill(self.table.collection, planned), planned, body=content, query=query
        )

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Outputs of a resource just made."""
        return self.read(context, id_, planned)

    def after_update(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Outputs of a resource just updated."""
        return self.read(context, id_, planned)

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Google's JSON of the resource, or None on 404."""
        try:
            rest: Mapping[str, Any] = self.call(context, "GET", self.item(known), known)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return rest

    def patch(
        self,
        context: Context,
        request: Update,
        planned: Mapping[str, Any],
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        changed: set[str],
    ) -> None:
        """Send one of the table's update requests."""
        names = [n for n in request.sends or request.fields if n in changed or not request.changed_only]
        fields = [f for f in self.table.fields if f.name in names]
        content: dict[str, Any] = {}
        if request.fingerprint:
            content["fingerprint"] = self.call(context, "GET", self.item(planned), planned).get("fingerprint")
        content |= mapping.body(fields, planned, inputs, update=True)
        content |= {key: self._fill(value, {**state, **planned}) for key, value in request.extra.items()}
        query: dict[str, Any] = {}
        if request.mask:
            places = sorted(str(self.table.field(n).place) for n in changed if n in request.fields)
            query[request.mask] = places if request.mask_repeats else ",".join(places)
        path = self.item(planned) + request.suffix
        self.call(context, request.method, path, planned, body=content, query=query)

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Send the request that removes the resource, and wait until it is gone."""
        if self.table.read_before_delete:
            self.call(context, "GET", self.item(known), known)
        self.call(context, "DELETE", self.item(known), known)

    # Names and requests -------------------------------------------------------------------------

    def id(self, planned: Mapping[str, Any]) -> str:
        """The resource's id in Pulumi's state."""
        return self._fill(self.table.id or self.table.item, planned)

    def item(self, known: Mapping[str, Any]) -> str:
        """The resource's path under its service's base."""
        return self._fill(self.table.item, known)

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """The properties that an id is made of; the inverse of `id`."""
        template = re.escape(self.table.id or self.table.item).replace(r"\{", "{").replace(r"\}", "}")
        groups = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)
        if self.table.id == "{name}":
            groups = r"(?P<name>.+)"
        if not (match := re.fullmatch(groups, id_)):
            raise StandInError(
                f"{self.label} id {id_!r} doesn't have the form {self.table.id or self.table.item}"
            )
        return match.groupdict()

    def known(self, id_: str, prior: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        """What is known of the resource before it is read: the state, and what its id says."""
        return {**prior, **self.parse(id_, settings)}

    def call(
        self,
        context: Context,
        method: str,
        path: str,
        known: Mapping[str, Any],
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a request to the type's service; where the answer is an operation, wait for its end."""
        deadline = context.deadline
        answer = context.client.send(
            self.table.service,
            method,
            path,
            query=query,
            body=body,
            library=self.table.client_library,
            deadline=deadline,
        )
        if not operations.is_operation(answer):
            return answer
        return operations.wait(
            context.client,
            self.table.service,
            answer,
            project=str(known.get("project") or context.settings.project),
            poll_s=context.poll_s,
            deadline=deadline,
        )

    def _fill(self, template: str, known: Mapping[str, Any]) -> str:
        words = mapping.parameters(known)
        try:
            return template.format_map(words)
        except KeyError as missing:
            name = missing.args[0]
            raise StandInError(
                f"{name}: required field is not set", fix=f"set `{name}` on the {self.label} or gcp:{name}"
            ) from None
