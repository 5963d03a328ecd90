"""Facts of a collection in its discovery document: names, schema, writable fields, style of answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from rehearsal.cloud.collections.entry import Collection, Entry
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.door import discovery
from rehearsal.cloud.door.schema import camel

NONE, LONGRUNNING, COMPUTE, CONTAINER = "none", "longrunning", "compute", "container"
_NO_IDS = ("requestId", "projectId", "zone", "clusterId", "nodePoolId", "operationId")
_OUTPUT_ONLY = re.compile(r"\[?Output[ -]only", re.IGNORECASE)
_REQUIRED = re.compile(r"^(?:\w+\. )?Required\.")
_IMMUTABLE = re.compile(r"^(?:[\w ]+\. )*Immutable\.|can be set only at resource creation")


class EntryError(ValueError):
    """An entry doesn't agree with its discovery document, or with another entry."""


def template(method: JsonObject, version: str) -> list[str]:
    """Return the segments of a method's path below the version; `{}` for a parameter."""
    path = method.get("flatPath") or method["path"]
    parts = [re.sub(r"\{.*?\}", "{}", part) for part in path.split("/")]
    return parts[1:] if parts[0] == version else parts


@lru_cache
def by_collection(api: str, version: str) -> dict[str, dict[str, JsonObject]]:
    """Return the methods of a document, by what their ids begin with, then by the last word."""
    collections: dict[str, dict[str, JsonObject]] = {}
    for name, method in discovery.document(api, version).methods.items():
        collection, _, verb = name.rpartition(".")
        collections.setdefault(collection, {})[verb] = method
    return collections


_VERSION = re.compile(r"v\d+((alpha|beta)\d*)?")


def segments(call: Call, method: JsonObject) -> list[str]:
    """Return the path of a request below the version, decoded, without a verb after a colon."""
    text = re.sub(r"\}:\w+$", "}", method["path"])
    parts = re.sub(r"\{\+?(\w+)\}", lambda match: call.path[match[1]], text).split("/")
    return parts[1:] if _VERSION.fullmatch(parts[0]) else parts  # the method may be another version's


@dataclass(frozen=True)
class Shape:
    """A collection in one version of its API."""

    entry: Entry
    collection: Collection
    version: str

    @cached_property
    def document(self) -> discovery.Document:
        """The version's document."""
        return discovery.document(self.entry.api, self.version)

    @cached_property
    def dialect(self) -> str:
        """The style of messages, links and ids: compute's, GKE's, or "" for that of most APIs."""
        return self.entry.api if self.entry.api in (COMPUTE, CONTAINER) else ""

    @cached_property
    def kind(self) -> str:
        """The resource's kind in Google's messages."""
        return self.collection.kind or self.schema

    @cached_property
    def message(self) -> str:
        """The full name of the resource's message in Protocol Buffers."""
        prefix = "".join(part[:1].upper() + part[1:] for part in self.package.split("."))
        return f"{self.package}.{self.schema.removeprefix(prefix)}"

    @cached_property
    def package(self) -> str:
        """The Protocol Buffers package of this version."""
        return self.entry.package.format(version=self.version)

    @cached_property
    def methods(self) -> dict[str, JsonObject]:
        """The document's methods of this collection, by the last word of their ids."""
        return by_collection(self.entry.api, self.version).get(self.collection.method, {})

    @cached_property
    def item(self) -> tuple[str, ...]:
        """The segments of a resource's name; of the collection's where no method is about one resource."""
        for verb in ("get", "delete", "patch", "update", "getIamPolicy"):
            if verb in self.methods:
                parts = template(self.methods[verb], self.version)
                if parts[-1] == verb:
                    parts.pop()
                return (*parts[:-1], parts[-1].partition(":")[0])
        return tuple(template(next(iter(self.methods.values())), self.version))

    @cached_property
    def schema(self) -> str:
        """The name of the resource's schema."""
        for verb in ("get", "create", "list"):
            if verb in self.methods:
                return str(self.methods[verb]["response"]["$ref"])
        return ""

    def properties(self, schema: str) -> dict[str, JsonObject]:
        """Return the fields of a schema."""
        fields: dict[str, JsonObject] = self.document.definitions.get(schema, {}).get("properties", {})
        return fields

    @cached_property
    def fields(self) -> dict[str, JsonObject]:
        """The fields of the resource."""
        return self.properties(self.schema)

    @cached_property
    def stamped(self) -> tuple[str, ...]:
        """The fields that identify a state of the resource: its etag and fingerprint."""
        stamps = (key for key in ("etag", "fingerprint") if key in self.fields)
        return tuple(k for k in stamps if not self.fields[k].get("description", "").startswith("Deprecated"))

    def style(self, method: JsonObject) -> str:
        """Return the style of a method's answer: the resource, or an operation of one of three kinds."""
        answer = self.properties(method.get("response", {}).get("$ref", ""))
        if "done" in answer and "metadata" in answer:
            return LONGRUNNING
        if "targetLink" in answer and "selfLink" in answer:
            return COMPUTE if "insertTime" in answer else CONTAINER
        return NONE

    # Names

    def wrapped(self, method: JsonObject) -> str:
        """Return the field of the request that has the resource, "" if the request is the resource."""
        schema = method.get("request", {}).get("$ref", "")
        if schema == self.schema:
            return ""
        fields = self.properties(schema).items()
        return next((key for key, field in fields if field.get("$ref") == self.schema), "")

    def id_parameter(self, method: JsonObject) -> tuple[str, str]:
        """Return the place of a new resource's id: ("query" or "body", name of the field), or ("", "")."""
        query = [
            name
            for name, parameter in method.get("parameters", {}).items()
            if parameter["location"] == "query" and name.endswith("Id") and name not in _NO_IDS
        ]
        if query:
            return "query", query[0]
        if self.wrapped(method):
            body = self.properties(method["request"]["$ref"])
            named = [name for name in body if name.endswith("Id") and name not in _NO_IDS]
            if named:
                return "body", named[0]
        return "", ""

    @cached_property
    def list_key(self) -> str:
        """The field of a list's answer that has the resources."""
        fields = self.properties(self.methods["list"]["response"]["$ref"])
        arrays = {key: field for key, field in fields.items() if field.get("type") == "array"}
        own = (key for key, field in arrays.items() if field["items"].get("$ref") == self.schema)
        return next(own, next(iter(arrays), ""))

    # Bodies

    def writable(self, sent: JsonObject, schema: str = "", *, output: bool = False) -> JsonObject:
        """Return a resource to keep: without nulls, empty values, and (but for `output`) output-only fields.

        64-bit numbers become strings, others numbers.
        """
        stored = {}
        for key, field in self.properties(schema or self.schema).items():
            if key in sent and (output or not output_only(field)):
                value = self._kept(sent[key], field, output)
                # A message is there also when it is empty: that selects a field of a oneof.
                if value not in (None, []) and (value != {} or ("$ref" in field and not self.dialect)):
                    stored[key] = value
        return stored

    def _kept(self, value: Any, field: JsonObject, output: bool) -> Any:
        if value is None:
            return None
        if "$ref" in field:
            inner = self.document.definitions[field["$ref"]]
            if "properties" in inner and isinstance(value, dict):
                return self.writable(value, field["$ref"], output=output)
            return value
        if field.get("type") == "array":
            return [self._kept(item, field["items"], output) for item in value if item is not None]
        if "additionalProperties" in field and isinstance(value, dict):
            return {k: self._kept(item, field["additionalProperties"], output) for k, item in value.items()}
        if field.get("format") in ("int64", "uint64") and not isinstance(value, str):
            return str(int(value))
        if field.get("type") == "integer" and isinstance(value, str):
            return int(value)
        return value

    def restore(self, old: JsonObject, new: JsonObject, schema: str = "") -> None:
        """Put what only the server sets back into messages that an update has replaced whole."""
        for key, field in self.properties(schema or self.schema).items():
            inner, was, now = field.get("$ref", ""), old.get(key), new.get(key)
            if not inner or not isinstance(was, dict) or not isinstance(now, dict) or now is was:
                continue
            for name, about in self.properties(inner).items():
                if name in was and name not in now and output_only(about):
                    now[name] = was[name]
            self.restore(was, now, inner)

    def marked(self, pattern: re.Pattern[str], sent: JsonObject, schema: str = "") -> Iterator[str]:
        """Yield dotted fields whose description matches, at the top and in every message that was sent."""
        for key, field in self.properties(schema or self.schema).items():
            if pattern.search(field.get("description", "")) and not output_only(field):
                yield key
            inner = field.get("items", field).get("$ref", "")
            value = sent.get(key)
            for item in value if isinstance(value, list) else [value]:
                if inner and isinstance(item, dict):
                    yield from (f"{key}.{path}" for path in self.marked(pattern, item, inner))

    def missing(self, sent: JsonObject) -> str:
        """Return the first required field that the request lacks, or ""."""
        for path in (*self.marked(_REQUIRED, sent), *self.collection.required):
            if path != "name" and not any(value not in (None, "", [], {}) for value in values(sent, path)):
                return path
        return ""

    def immutable(self, body: JsonObject) -> set[str]:
        """Return dotted fields that an update may not change."""
        return {*self.marked(_IMMUTABLE, body), *self.collection.immutable}

    def resolve(self, path: str) -> tuple[str, bool] | None:
        """Resolve a path of an update mask: in camel case, and True if it is output only; None if unknown."""
        fields, names, frozen = self.fields, [], False
        parts = path.strip().split(".")
        for index, part in enumerate(parts):
            name = part if part in fields else camel(part)
            field = fields.get(name)
            if field is None:
                return None
            names.append(name)
            frozen = frozen or output_only(field)
            fields = self.properties(field.get("$ref", ""))
            if not fields:
                return ".".join([*names, *parts[index + 1 :]]), frozen
        return ".".join(names), frozen


def output_only(field: JsonObject) -> bool:
    """Return True if only the server sets the field."""
    return bool(field.get("readOnly")) or bool(_OUTPUT_ONLY.match(field.get("description", "")))


def values(body: Any, path: str) -> list[Any]:
    """Return the values at a dotted path, items of lists included."""
    items = [body]
    for key in path.split("."):
        items = [item[key] for item in items if isinstance(item, dict) and key in item]
        items = [leaf for item in items for leaf in (item if isinstance(item, list) else [item])]
    return items
