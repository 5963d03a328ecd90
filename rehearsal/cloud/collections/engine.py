"""Services made of entries: plain methods, their permissions and their handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from rehearsal.cloud.collections import masks, reads, writes
from rehearsal.cloud.collections.entry import Collection, Entry, Verb
from rehearsal.cloud.collections.operating import operation_methods
from rehearsal.cloud.collections.resources import Resources
from rehearsal.cloud.collections.shape import COMPUTE, NONE, EntryError, Shape
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.operations import Operations, versioned
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.service import Call, Method
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.iam.policies import policy_methods

Handler = Callable[[Resources, Shape, JsonObject, Call], JsonObject]

_POLICY = ("getIamPolicy", "setIamPolicy", "testIamPermissions")
_PLAIN = {"insert": "create", "patch": "update", "aggregatedList": "list"}  # a verb by whose permission
_HANDLERS: dict[str, Handler] = {
    "create": writes.create,
    "insert": writes.create,
    "get": reads.get,
    "list": reads.list_,
    "aggregatedList": reads.aggregated_list,
    "patch": writes.update,
    "update": writes.update,
    "delete": writes.delete,
    "setLabels": partial(writes.special, Verb(masks.set_labels)),
}


class Engine:
    """The entered services over one world. EntryError for an entry that contradicts its document."""

    def __init__(
        self, world: World, operations: Operations, iam: Iam, runtime: Runtime, entries: Iterable[Entry]
    ) -> None:
        entries = list(entries)
        self.resources = Resources(world, operations, iam, runtime, entries)
        self.services = [CollectionService(self.resources, entry) for entry in entries]


class CollectionService:
    """An API in some versions."""

    def __init__(self, resources: Resources, entry: Entry) -> None:
        self.api, self.versions = entry.api, entry.versions
        self._resources = resources
        self._repeated: dict[tuple[str, str], JsonObject] = {}
        self._methods = dict(self._described(entry))

    def methods(self) -> Mapping[str, Method]:
        """Methods by id."""
        return self._methods

    def _described(self, entry: Entry) -> Iterable[tuple[str, Method]]:
        operating = False
        for collection in entry.collections:
            shapes = {version: Shape(entry, collection, version) for version in entry.versions}
            known = {verb for shape in shapes.values() for verb in shape.methods}
            named = {*collection.verbs, *collection.omit, *collection.permissions}
            if wrong := sorted(named - known):
                names = ", ".join(f"{collection.method}.{verb}" for verb in wrong)
                raise EntryError(f"{names}: not in the document of {entry.api}.")
            for verb in sorted(known - set(collection.omit)):
                method = self._method(collection, shapes, verb)
                if method is not None:
                    yield f"{collection.method}.{verb}", method
                    own = [shape for shape in shapes.values() if verb in shape.methods]
                    operating = operating or any(s.style(s.methods[verb]) != NONE for s in own)
        if operating and entry.own_operations:
            yield from operation_methods(self._resources, entry)

    def _method(self, collection: Collection, shapes: Mapping[str, Shape], verb: str) -> Method | None:
        """Return None for a method that is neither plain nor in the entry."""
        resources, special = self._resources, collection.verbs.get(verb)
        prefix = collection.permission or f"{self.api}.{collection.method.rpartition('.')[2]}"
        if verb in _POLICY and special is None:

            def named(call: Call) -> str:
                shape = shapes[call.version]
                return resources.name(shape, shape.methods[call.method_id.rpartition(".")[2]], call)

            methods = policy_methods(resources.iam, collection.method, prefix, named, resources.find)
            return methods[f"{collection.method}.{verb}"]
        handler = partial(writes.special, special) if special else _HANDLERS.get(verb)
        if handler is None:
            return None
        permission = collection.permissions.get(verb, f"{prefix}.{_PLAIN.get(verb, verb)}")
        return Method(
            partial(self._run, handler, shapes, verb), permission, partial(self._resource, shapes, verb)
        )

    async def _run(self, handler: Handler, shapes: Mapping[str, Shape], verb: str, call: Call) -> JsonObject:
        """Answer a request; a repetition with the same `requestId` gets the first answer."""
        shape = shapes[call.version]
        again = (call.method_id, str(call.query.get("requestId") or ""))
        if again not in self._repeated:
            given = versioned(call, handler(self._resources, shape, shape.methods[verb], call))
            if not again[1]:
                return given
            self._repeated[again] = given
        return self._repeated[again]

    def _resource(self, shapes: Mapping[str, Shape], verb: str, call: Call) -> str:
        """Return the resource that IAM decides about: its own name, its parent, or the listed collection."""
        shape = shapes[call.version]
        method = shape.methods[verb]
        if verb == "insert":
            return self._resources.new_name(shape, method, call)
        if verb not in ("list", "aggregatedList", "create"):
            return self._resources.name(shape, method, call)
        path = self._resources.path(shape, method, call)
        if verb == "create":
            return "/".join(path[: len(shape.item) - 2])
        return "/".join(path[:2] if shape.dialect == COMPUTE else path[:-1])
