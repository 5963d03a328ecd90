"""References between resources, in both directions, read from the bodies at each look-up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rehearsal.cloud.collections.entry import Collection, Reference
from rehearsal.cloud.collections.shape import values
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World

LINK = re.compile(r"(?:https?:)?//[\w.-]+\.googleapis\.com/(?:compute/)?(?:(?:v\d\w*|beta|alpha)/)?")
# Collections that are served manually.
BY_HAND: dict[tuple[str, ...], Collection] = {
    ("projects", "_", "buckets", "{}"): Collection("storage.buckets"),
}


class References:
    """The resources of the directory as a graph. `items`: the collections by their names' segments."""

    def __init__(self, world: World, items: Mapping[tuple[str, ...], Collection]) -> None:
        self._world = world
        self._by_word: dict[str, list[tuple[tuple[str, ...], Collection]]] = {}
        for item, collection in (BY_HAND | dict(items)).items():
            if len(item) > 1:
                self._by_word.setdefault(item[-2], []).append((item, collection))

    def collection(self, name: str) -> Collection | None:
        """Return the collection of a full name."""
        parts = name.split("/")
        if name.startswith("//"):
            parts = parts[3:]
        for item, collection in self._by_word.get(parts[-2] if len(parts) > 1 else "", ()):
            if len(item) == len(parts) and all(a in ("{}", b) for a, b in zip(item, parts, strict=True)):
                return collection
        return None

    def full(self, value: str, relative: str = "") -> str:
        """Return the full name of a link, a name with the project's number, or one relative to `relative`."""
        return full_name(self._world, value, relative)

    def target(self, reference: Reference, user: str, value: str) -> str:
        """Return the full name for the value of a reference of `user`."""
        project = f"projects/{self._world.project}"
        if "/" not in value and reference.short:
            region = "-".join(user.split("/")[3].split("-")[:2]) if user.count("/") > 2 else ""
            value = reference.short.format(project=self._world.project, region=region, id=value)
        return self.full(
            value, project if reference.to[:1] and reference.to[0].startswith("compute.") else ""
        )

    def users(self, name: str) -> Iterator[tuple[str, Reference]]:
        """Yield every resource that refers to this one, with the reference."""
        for user, body in self._world.directory.items():
            collection = self.collection(user) if user != name else None
            for reference in collection.references if collection else ():
                named = (v for v in values(body, reference.field) if isinstance(v, str))
                if any(self.target(reference, user, value) == name for value in named):
                    yield user, reference


def full_name(world: World, value: str, relative: str = "") -> str:
    """Return the full name of a link, a name with the project's number, or one relative to `relative`."""
    name = LINK.sub("", value, count=1)
    if relative and not name.startswith("projects/"):
        name = f"{relative}/{name}"
    number = f"projects/{world.number}/"
    return f"projects/{world.project}/{name[len(number) :]}" if name.startswith(number) else name


def rewrite(body: JsonObject, path: str, change: Callable[[str], str]) -> None:
    """Replace every text at a dotted path, lists included, by `change(text)`."""
    key, _, rest = path.partition(".")
    if key not in body:
        return
    if rest:
        inner = body[key]
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, dict):
                rewrite(item, rest, change)
        return
    value: Any = body[key]
    if isinstance(value, list):
        body[key] = [change(item) for item in value]
    elif value:
        body[key] = change(value)
