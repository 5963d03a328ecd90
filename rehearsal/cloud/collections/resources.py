"""The resources of all entered collections, their names and look-ups."""

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
                first = collection if collection.qualified else items.setdefault(shape.item, collection)
                if first is not collection:
                    why = f"has the names of {first.method}; let one be `qualified`."
                    raise EntryError(f"{collection.method}: {why}")
        known = {*self._shapes, *(collection.method for collection in BY_HAND.values())}
        for collection in (shape.collection for shape in self._shapes.values()):
            for reference in collection.references:
                if unknown := [to for to in reference.to if to not in known]:
                    raise EntryError(f"{collection.method}: {reference.field} names {unknown[0]}: no entry.")
        self.references = References(world, items)

    def shape(self, collection: str, version: str = "") -> Shape:
        """Return a collection by the prefix of its method ids, in a version, by default its first."""
        first = self._shapes[collection]
        return Shape(first.entry, first.collection, version) if version else first

    def shape_of(self, name: str) -> Shape | None:
        """Return the collection of a full name."""
        collection = self.references.collection(name)
        return self._shapes.get(collection.method) if collection else None

    # Resources

    def find(self, name: str, shape: Shape | None = None) -> JsonObject:
        """Return the body of a resource; ApiError 404 in its API's words."""
        body = self.world.find(name)
        if body is None:
            raise words.not_found(shape or self.shape_of(name), name)
        return body

    def ready(self, name: str, shape: Shape | None = None) -> JsonObject:
        """Return the body of a resource that no operation is changing; ApiError 404, or its API's "busy"."""
        body = self.find(name, shape)
        self.check_idle(name)
        return body

    def check_idle(self, name: str) -> None:
        """Raise the API's "busy" if an operation is changing the resource, or the cluster of a node pool."""
        if (operation := self.operations.busy.get(busy_name(name))) is not None:
            raise words.busy(self.shape_of(name), name, operation)

    def below(self, prefix: str) -> list[tuple[str, JsonObject]]:
        """Return resources of a collection (`projects/P/global/networks`) by name; `-` is any segment."""
        parts = ["[^/]+" if part == "-" else re.escape(part) for part in prefix.split("/")]
        pattern = re.compile("/".join([*parts, "[^/]+"]))
        matches = [(name, body) for name, body in self.world.directory.items() if pattern.fullmatch(name)]
        return sorted(matches, key=lambda item: item[0])

    def users(self, name: str) -> list[str]:
        """Return full names of the resources that refer to this one."""
        return sorted({user for user, _ in self.references.users(name)})

    def drop(self, name: str) -> None:
        """Forget a resource, its policy and its private data."""
        self.world.directory.pop(name, None)
        self.world.private.pop(name, None)
        self.iam.drop(name)

    # Names

    def path(self, shape: Shape, method: JsonObject, call: Call) -> list[str]:
        """Return the request's segments with the project's id; ApiError for an unknown zone or region."""
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
        """Return the full name of a request's resource."""
        path = self.path(shape, method, call)[: len(shape.item)]
        return self.key(shape, shape.collection.alias(self.world, "/".join(path)))

    def key(self, shape: Shape, name: str) -> str:
        """Return the key of a full name: with the API's host if another API has the same names."""
        return f"//{shape.entry.api}.googleapis.com/{name}" if shape.collection.qualified else name

    def new_name(self, shape: Shape, method: JsonObject, call: Call) -> str:
        """Return the full name of the resource to create; it ends in "/" if the request has no id."""
        path = self.path(shape, method, call)
        if len(path) >= len(shape.item):
            return self.name(shape, method, call)
        where, parameter = shape.id_parameter(method)
        body = call.body or {}
        given = ""
        if where:
            given = str((call.query if where == "query" else body).get(parameter) or "")
        elif field := shape.collection.id_field or ("name" if shape.dialect else ""):
            ids = values(body.get(shape.wrapped(method), body), field)
            given = str(ids[0]).removeprefix("/".join(path) + "/") if ids else ""
        return self.key(shape, shape.collection.named(self.world, f"{'/'.join(path)}/{given}"))

    def with_id(self, shape: Shape, method: JsonObject, name: str) -> str:
        """Complete a new name with the server's id if it lacks one; ApiError 400 for an invalid id."""
        collection, short = shape.collection, name.rpartition("/")[2]
        if not short and not shape.id_parameter(method)[0] and (not shape.dialect):
            return f"{name}{collection.new_id(self, name[:-1])}"
        if not short or (collection.pattern and not re.fullmatch(collection.pattern, short)):
            pattern = f" It must match {collection.pattern}." if collection.pattern else ""
            raise bad_request(f"Invalid {shape.kind} id '{short}'.{pattern}")
        return name

    def check_parent(self, shape: Shape, path: list[str]) -> None:
        """Raise ApiError unless the location is one of Google's and the parent resource exists."""
        if len(path) > 3 and path[2] == "locations" and path[3] not in self._locations():
            code, status, text = shape.entry.location_unknown
            raise ApiError(code, status, text.format(location=path[3]))
        parent = "/".join(path)
        if "-" not in path and self.shape_of(parent) is not None:
            self.find(parent)

    def _locations(self) -> frozenset[str]:
        places = (name.split("/") for name in self.world.directory if name.count("/") == 3)
        own = {parts[3] for parts in places if parts[2] in ("zones", "regions")}
        return discovery.document(COMPUTE, "v1").locations | _MULTI_REGIONS | own | {"-"}


def busy_name(name: str) -> str:
    """Return the resource that an operation keeps busy: for a node pool, its cluster."""
    return "/".join(name.split("/")[:6]) if "/clusters/" in name else name


def plain(name: str) -> str:
    """Return the name without the API's host."""
    return "/".join(name.split("/")[3:]) if name.startswith("//") else name
