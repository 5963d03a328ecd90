"""Life cycle of a resource: create, read, update and delete by its table.

Types that need more than a table (a policy's members, an object's bytes, a router's NAT) derive
from `Resource` and replace the steps that differ.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rehearsal.providers.gcp import difference, mapping, operations
from rehearsal.providers.gcp.api import DEFAULT_TIMEOUT_S, Client
from rehearsal.providers.gcp.batch import Batches
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import Service, Table, Update
from rehearsal.providers.plugin.errors import CreatedButError, OperationError, ProviderApiError, StandInError
from rehearsal.providers.plugin.provider import Difference
from rehearsal.providers.plugin.values import has_unknown

FORBIDDEN = 403
NOT_FOUND = 404


@dataclass(frozen=True)
class Context:
    """Context of a request: connection, provider settings, and timeouts in seconds."""

    client: Client
    settings: Settings
    batches: Batches
    poll_s: float
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def deadline(self) -> float:
        """The end of this step's patience, on the monotonic clock."""
        return time.monotonic() + self.timeout_s

    def send(self, service: Service, method: str, path: str, **more: Any) -> Any:
        """`Client.send` with this step's deadline."""
        return self.client.send(service, method, path, deadline=self.deadline, **more)


@dataclass(frozen=True)
class PlannedUpdate:
    """Content of an update: `planned` values, and names of the properties that differ."""

    planned: Mapping[str, Any]
    inputs: Mapping[str, Any]
    state: Mapping[str, Any]
    changed: set[str]


class Resource:
    """A resource type in use; its only state is its table."""

    def __init__(self, *table: Any, **more: Any) -> None:
        """Construct the Table from token, service, item, updates and exceptions, and the rest by name."""
        self.table = Table(*table, **more)
        self.label = self.table.label

    # The four steps --------------------------------------------------------------------------

    def create(self, context: Context, inputs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Make the resource; returns its id and outputs.

        Raises StandInError if nothing was made, CreatedButError if it was and couldn't be finished.
        """
        planned = self.complete(context, mapping.plan(self.table, inputs, {}, context.settings))
        try:
            if self.table.looks_first and self.get(context, planned) is not None:
                raise StandInError(f"{self.label} {self.id(planned)} already exists and must be imported")
            planned |= self.assigned(self.insert(context, planned, inputs))
        except OperationError as error:
            raise StandInError(f"Error waiting to create {self.label}: {error}") from error
        except ProviderApiError as error:
            raise StandInError(f"Error creating {self.label}: {error}") from error
        id_ = self.id(planned)
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
        """Return the resource's current outputs, or None if it is gone. `prior`: previous outputs."""
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
        if unsent := sorted(changed - self.table.sendable):
            raise StandInError(
                f"the stand-in knows no request that changes {', '.join(unsent)} of {self.label}"
            )
        planned = mapping.plan(self.table, inputs, state, context.settings)
        planned = self.complete(context, self.known(id_, planned, context.settings))
        try:
            for request in self.table.updates:
                if changed & {f.name for f in self.table.sent(request)}:
                    self.patch(context, request, PlannedUpdate(planned, inputs, state, changed))
            outputs = self.after_update(context, id_, planned)
        except (ProviderApiError, OperationError) as error:
            raise StandInError(f"Error updating {self.label} {id_!r}: {error}") from error
        if outputs is None:
            raise StandInError(f"Error updating {self.label} {id_!r}: it is not there any more")
        return outputs

    def delete(self, context: Context, id_: str, state: Mapping[str, Any]) -> None:
        """Remove the resource; one that is gone already is a success."""
        if state.get("deletionProtection") and self.table.field("deletionProtection").place is None:
            raise StandInError(
                f"cannot destroy {self.label} {id_!r} without setting deletionProtection=false and running"
                " `pulumi up`"
            )
        match state.get("deletionPolicy"):
            case "PREVENT":
                raise StandInError(
                    f'cannot destroy {self.label} {id_!r} without setting deletionPolicy to "DELETE"'
                )
            case "ABANDON":
                return
        try:
            self.remove(context, self.known(id_, state, context.settings))
        except ProviderApiError as error:
            if error.status != NOT_FOUND:
                raise StandInError(f"Error deleting {self.label} {id_!r}: {error}") from error
        except OperationError as error:
            raise StandInError(f"Error waiting for deleting {self.label} {id_!r}: {error}") from error

    def differences(
        self,
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        settings: Settings,
        ignored: Sequence[str],
    ) -> list[Difference]:
        """Return the differences of an update to `inputs`."""
        return difference.differences(self.table, inputs, state, settings, ignored)

    # What a type may do differently ------------------------------------------------------------

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Look up what the plan still lacks."""
        return planned

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Send the request that makes the resource, and wait until it is made; returns Google's answer."""
        table = self.table
        content = self.content(planned, inputs) if table.create_has_body else None
        collection = table.collection or table.item.rpartition("/")[0]
        return self.call(
            context,
            table.create_method,
            self._fill(collection, planned),
            planned,
            body={table.create_wrap: content} if table.create_wrap else content,
            query=self._filled(table.create_query, planned),
        )

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of the creating request."""
        return mapping.body(self.table.inputs, planned, inputs)

    def assigned(self, answer: Any) -> dict[str, Any]:
        """Properties that Google chose when it made the resource."""
        made = answer.get("response", answer) if isinstance(answer, Mapping) else {}
        return {name: made[place] for name, place in self.table.assigned.items() if place in made}

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs of a resource just created, once it is visible everywhere."""
        looks, deadline = 0, context.deadline
        while looks < self.table.looks:
            try:
                looks += self.get(context, planned) is not None or time.monotonic() > deadline
            except ProviderApiError as error:  # what is new may be refused until it is known everywhere
                if error.status != FORBIDDEN or time.monotonic() > deadline:
                    raise
            context.client.pause(context.poll_s)
        return self.read(context, id_, planned)

    def after_update(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs of a resource just updated."""
        return self.read(context, id_, planned)

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Google's JSON of the resource, or None on 404."""
        try:
            rest: Mapping[str, Any] = self.call(context, "GET", self.item(known), known)
        except ProviderApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return rest

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send one of the table's update requests."""
        content = self.written(context, request, change)
        query: dict[str, Any] = {}
        if request.mask:
            changed = {f.mask or str(f.place) for f in self.table.sent(request) if f.name in change.changed}
            places = sorted(changed)
            query[request.mask] = places if request.mask_repeats else ",".join(places)
        path = self.item(change.planned) + request.suffix
        body = {request.wrap: content} if request.wrap else content
        self.call(context, request.method, path, change.planned, body=body, query=query)

    def written(self, context: Context, request: Update, change: PlannedUpdate) -> dict[str, Any]:
        """Return the body of an update request."""
        planned, about = change.planned, self.table.sent(request)
        fields = [f for f in about if f.name in change.changed or not request.changed_only]
        content: dict[str, Any] = {}
        if request.fingerprint:
            content["fingerprint"] = self.call(context, "GET", self.item(planned), planned).get("fingerprint")
        content |= mapping.body(fields, planned, change.inputs, update=True)
        return content | self._filled(request.extra, {**change.state, **planned})

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Send the request that removes the resource, and wait until it is gone."""
        if self.table.read_before_delete:
            self.call(context, "GET", self.item(known), known)
        query = self._filled(self.table.delete_query, known)
        self.call(context, "DELETE", self.item(known), known, query=query)

    # Names and requests -------------------------------------------------------------------------

    def id(self, planned: Mapping[str, Any]) -> str:
        """Return the resource's id in Pulumi's state."""
        return self._fill(self.table.id or self.table.item, planned)

    def item(self, known: Mapping[str, Any]) -> str:
        """Return the resource's path under its service's base."""
        quoted = {name: quote(str(known[name]), safe="") for name in self.table.quoted}
        return self._fill(self.table.item, {**known, **quoted})

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """Return the properties in an id; the inverse of `id`."""
        template = re.escape(self.table.id or self.table.item).replace(r"\{", "{").replace(r"\}", "}")
        groups = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)
        if (self.table.id or self.table.item) == "{name}":
            groups = r"(?P<name>.+)"
        if not (match := re.fullmatch(groups, id_)):
            raise StandInError(
                f"{self.label} id {id_!r} doesn't have the form {self.table.id or self.table.item}"
            )
        return match.groupdict()

    def known(self, id_: str, prior: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        """Return the properties known before a read: the state's, and those in the id."""
        return {"project": settings.project, **prior, **self.parse(id_, settings)}

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
        service, library = self.table.service, self.table.client_library
        answer = context.client.send(
            service, method, path, query=query, body=body, library=library, deadline=deadline
        )
        if not operations.is_operation(answer):
            return answer
        return operations.wait(
            context.client,
            service,
            answer,
            project=str(known.get("project") or context.settings.project),
            poll_s=context.poll_s,
            deadline=deadline,
        )

    def _filled(self, query: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._fill(value, known) for key, value in query.items()}

    def _fill(self, template: str, known: Mapping[str, Any]) -> str:
        words = mapping.parameters(known)
        try:
            return template.format_map(words)
        except KeyError as missing:
            name = missing.args[0]
            raise StandInError(
                f"{name}: required field is not set", fix=f"set `{name}` on the {self.label} or gcp:{name}"
            ) from None
