"""The resources of all entered collections: what they are called, and where they are found."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable

from rehearsal.cloud.collections import words
from rehearsal.cloud.collections.entry import Collection, Entry
from rehearsal.cloud.collections.references import BY_HAND, References
from rehearsal.cloud.collections.shape import COMPUTE, EntryError, Shape, segments, values
from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door import discovery
from rehearsal.cloud.iam.iam import Iam

_MULTI_REGIONS = frozenset({"global", "us", "eu", "europe", "asia", "nam4", "eur4", "asia1"})


class Resources:
    """The resources of one world."""

    def __init__(
        self, world: World, operations: Operations, iam: Iam, runtime: Runtime, entries: Iterable[Entry]
    ) -> None:
        self.world, self.operations, self.iam, self.runtime = world, operations, iam, runtime
        self.numbers: itertools.count[int] = itertools.count(int(time.time() * 1e9))
        self._shapes: dict[str, Shape] = {}
        items: dict[tuple[str, ...], Collection] = {}
        for entry in entries:
            if unknown := [
                version for version in entry.versions if (entry.api, version) not in discovery.APIS
            ]:
                raise EntryError(f"{entry.api} {unknown[0]}: there is no discovery document of it.")
            for collection in entry.collections:
                shape = Shape(entry, collection, entry.versions[0])
                if not shape.methods:
                    raise EntryError(f"{collection.method}: not in the document of {entry.api}.")
                if collection.method in self._shapes:
                    raise EntryError(f"{collection.method}: two entries claim it.")
                self._shapes[collection.method] = shape
                other = collection if collection.qualified else items.setdefault(shape.item, collection)
                if other is not collection:
                    why = f"has the names of {other.method}; let one be `qualified`."
                    raise EntryError(f"{collection.method}: {why}")
        known = {*self._shapes, *(collection.method for collection in BY_HAND.values())}
        for collection in (shape.collection for shape in self._shapes.values()):
            for reference in collection.references:
                if unknown := [to for to in reference.to if to not in known]:
                    raise EntryError(f"{collection.method}: {reference.field} names {unknown[0]}: no entry.")
        self.references = References(world, items)

    def shape(self, collection: str, version: str = "") -> Shape:
        """A collection by what its method ids begin with, in a version, by default its first."""
        first = self._shapes[collection]
        return Shape(first.entry, first.collection, version) if version else first

    def shape_of(self, name: str) -> Shape | None:
        """The collection of a full name."""
        collection = self.references.collection(name)
        return self._shapes.get(collection.method) if collection else None

    # Resources

    def find(self, name: str, shape: Shape | None = None) -> JsonObject:
        """The body of a resource; ApiError 404 in its API's words."""
        body = self.world.find(name)
        if body is None:
            raise words.not_found(shape or self.shape_of(name), name)
        return body

    def ready(self, name: str, shape: Shape | None = None) -> JsonObject:
        """The body of a resource that no operation is changing; ApiError 404, or what Google answers then."""
        body = self.find(name, shape)
        self.check_idle(name)
        return body

    def check_idle(self, name: str) -> None:
        """What Google answers if an operation is changing the resource, or the cluster of a node pool."""
        if (operation := self.operations.busy.get(busy_name(name))) is not None:
            raise words.busy(self.shape_of(name), name, operation)

    def below(self, prefix: str) -> list[tuple[str, JsonObject]]:
        """Resources directly in a collection (`projects/P/global/networks`), by name; `-` is any segment."""
        parts = ["[^/]+" if part == "-" else re.escape(part) for part in prefix.split("/")]
        pattern = re.compile("/".join([*parts, "[^/]+"]))
        found = [(name, body) for name, body in self.world.directory.items() if pattern.fullmatch(name)]
        return sorted(found, key=lambda item: item[0])

    def users(self, name: str) -> list[str]:
        """Full names of the resources that name this one."""
        return sorted({user for user, _ in self.references.users(name)})

    def drop(self, name: str) -> None:
        """Forget a resource, its policy and what is private to it."""
        self.world.directory.pop(name, None)
        self.world.private.pop(name, None)
        self.iam.drop(name)

    # Names

    def path(self, shape: Shape, method: JsonObject, call: Call) -> list[str]:
        """The request's segments with the project's id; ApiError for a zone or region that isn't."""
        path = segments(call, method)
        if path[:2] == ["projects", self.world.number]:
            path[1] = self.world.project
        if shape.dialect == COMPUTE:
            if path[1] != self.world.project:
                raise words.not_found(shape, f"projects/{path[1]}")
            placed = path[2:3] in (["zones"], ["regions"]) and len(path) > 4
            if placed and "/".join(path[:4]) not in self.world.directory:
                kind = path[2].removesuffix("s")
                raise words.invalid(kind, path[3], f"Unknown {kind}.")
        return path

    def name(self, shape: Shape, method: JsonObject, call: Call) -> str:
        """The full name that a request is about."""
        path = self.path(shape, method, call)[: len(shape.item)]
        return self.key(shape, shape.collection.alias(self.world, "/".join(path)))

    def key(self, shape: Shape, name: str) -> str:
        """A full name as it is kept: with the API's host where another API has the same names."""
        return f"//{shape.entry.api}.googleapis.com/{name}" if shape.collection.qualified else name

    def new_name(self, shape: Shape, method: JsonObject, call: Call) -> str:
        """The full name of what a request creates; it ends in "/" where the request has no id."""
        path = self.path(shape, method, call)
        if len(path) >= len(shape.item):
            return self.name(shape, method, call)
        where, parameter = shape.id_parameter(method)
        body = call.body or {}
        given = ""
        if where:
            given = str((call.query if where == "query" else body).get(parameter) or "")
        elif field := shape.collection.id_field or ("name" if shape.dialect else ""):
            found = values(body.get(shape.wrapped(method), body), field)
            given = str(found[0]).removeprefix("/".join(path) + "/") if found else ""
        return self.key(shape, shape.collection.named(self.world, f"{'/'.join(path)}/{given}"))

    def with_id(self, shape: Shape, method: JsonObject, name: str) -> str:
        """A new name with the server's id where there is none; ApiError 400 for a bad one."""
        collection, short = shape.collection, name.rpartition("/")[2]
        if not short and not shape.id_parameter(method)[0] and (not shape.dialect):
            return f"{name}{collection.new_id(self, name[:-1])}"
        if not short or (collection.pattern and not re.fullmatch(collection.pattern, short)):
            pattern = f" It must match {collection.pattern}." if collection.pattern else ""
            raise bad_request(f"Invalid {shape.kind} id '{short}'.{pattern}")
        return name

    def check_parent(self, shape: Shape, path: list[str]) -> None:
        """ApiError unless the location is one of Google's and the parent resource is there."""
        if len(path) > 3 and path[2] == "locations" and path[3] not in self._locations():
            code, status, text = shape.entry.location_unknown
            raise ApiError(code, status, text.format(location=path[3]))
        parent = "/".join(path)
        if "-" not in path and self.shape_of(parent) is not None:
            self.find(parent)

    def _locations(self) -> frozenset[str]:
        places = (name.split("/") for name in self.world.directory if name.count("/") == 3)
        here = {parts[3] for parts in places if parts[2] in ("zones", "regions")}
        return discovery.document(COMPUTE, "v1").locations | _MULTI_REGIONS | here | {"-"}


def busy_name(name: str) -> str:
    """What an operation on the resource keeps busy: with a node pool, its whole cluster."""
    return "/".join(name.split("/")[:6]) if "/clusters/" in name else name


def plain(name: str) -> str:
    """The name without the API's host before it."""
    return "/".join(name.split("/")[3:]) if name.startswith("//") else name
