"""A resource type's fields from the SDK (names, shapes), Terraform's table and the API's discovery document.

The table (terraform.py) has which change replaces the resource, defaults, values, and what Google may set.
The document has a property's place in Google's JSON: under the same name, in the singular, or spelt
with other capitals. Rules that none has (when a zero is sent, other names) are exceptions, written manually.
A property without a place and without an exception is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from rehearsal.providers.gcp import sdk, suppress, terraform
from rehearsal.providers.gcp.field import Field, Kind, Send

# What is otherwise, by the paths of properties (`"a b.c *.d"` are three): words, or attributes of `Field`
# with words under `is`. A word is one of these, or `only=…`, `at=…`: the place in the JSON.
Exceptions = Mapping[str, str | Mapping[str, Any]]
_WORDS: Mapping[str, Mapping[str, Any]] = {
    "always": {"send": Send.ALWAYS},  # sent, zero or not
    "given": {"send": Send.GIVEN},  # sent if the program gave it, zero or not
    "own": {"send": Send.OWN},  # sent only if the program gave it
    "never": {"send": Send.NEVER},
    "updated": {"send_update": Send.ALWAYS},  # as always, but in updates alone
    "local": {"rest": None},  # the provider's own, never sent to Google
    "nameless": {"rest": None},  # stands in the path alone
    "refused": {"rest": None, "output": True},  # not recorded, so not taken from a program
    "output": {"output": True},
    "no-output": {"output": False},
    "text": {"text": True},
    "no-text": {"text": False},
}
Schema = Mapping[str, Any]

_KINDS = {"str": Kind.STRING, "int": Kind.INT, "float": Kind.NUMBER, "bool": Kind.BOOL, "Any": Kind.ANY}
_ASSETS = ("Asset", "Archive")
_SETS = {"set": Kind.SET, "blockset": Kind.BLOCK_SET}
_EVERYWHERE: Exceptions = {
    "project": {"rest": None},
    "deletionPolicy": {"rest": None, "send": Send.NEVER},
    "effectiveAnnotations": {"rest": "annotations"},
}


def expanded(exception: str | Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of `Field`; raises KeyError for a word that isn't one."""
    words = exception if isinstance(exception, str) else exception.get("is", "")
    attributes: dict[str, Any] = {}
    for word in words.split():
        key, equals, value = word.partition("=")
        attributes |= {"rest" if key == "at" else key: value} if equals else _WORDS[word]
    return (
        attributes
        if isinstance(exception, str)
        else {**attributes, **{k: v for k, v in exception.items() if k != "is"}}
    )


def fields(
    token: str,
    document: str,
    path: str,
    exceptions: Exceptions,
    schema: str = "",
    library: bool = False,
) -> tuple[Field, ...]:
    """Return the fields of the type `token`.

    `document`: the API's, `compute.beta`. `path`: the resource's, under the origin; its JSON is what a GET of
    it answers, or `schema` by name. `library`: Google's Go library sends the requests, numbers as texts where
    the document has it so.
    """
    known, properties = sdk.resource_type(token), terraform.resource_type(token).properties
    maker = _Maker(document, known.module, exceptions, library)
    shape = maker.named(schema) if schema else maker.answer(path)
    fields_ = []
    for name in sorted((known.inputs.keys() | known.outputs.keys()) - {"effectiveLabels", "pulumiLabels"}):
        output = name not in known.inputs
        about = known.outputs[name] if output else known.inputs[name]
        in_path = f"{{{name}}}" in path
        made = maker.field(about, properties, shape, name, output=output, unplaced=output or in_path)
        if made is None:
            continue
        attributes = {"output": output, **made}
        is_labels = name in ("labels", "resourceLabels") and "effectiveLabels" in known.outputs
        if attributes["kind"] is Kind.MAP and is_labels:
            attributes["kind"] = Kind.LABELS
        if path.endswith("/{name}") and name == "name":
            attributes.setdefault("decode", lambda link: link and str(link).rpartition("/")[2])
        fields_.append(Field(name, **attributes))
    return tuple(fields_)


@dataclass(frozen=True)
class _Maker:
    """Common inputs of all fields of a type."""

    document: str
    module: str
    exceptions: Exceptions
    library: bool

    def field(
        self,
        about: sdk.Property,
        properties: terraform.Properties,
        shape: Schema | None,
        path: str,
        *,
        output: bool,
        unplaced: bool,
    ) -> dict[str, Any] | None:
        """Return a field's attributes, or None for an optional property without a place in `shape`."""
        more = {**expanded(_EVERYWHERE.get(path, "")), **self._excepted(path)}
        place = more["rest"] if "rest" in more else _place(shape, about.name)
        if place is None and "rest" not in more and not unplaced:
            return None
        at = self._at(shape, place)
        declared = terraform.find(properties, about.name)
        if declared is None:  # newer than the table, or within what only the API sets
            declared, more = terraform.Declared(""), {"output": True, **more}
        kind = _SETS.get(declared.kind) or _kind(about)
        if isinstance(more.get("only"), str):
            more["only"] = _value(more["only"], kind)
        listed = at is not None and at.get("type") == "array"
        attributes: dict[str, Any] = {
            "kind": kind,
            "rest": place,
            "required": not about.optional and not output,
            "replaces": declared.fixed,
            "computed": declared.computed,
            "default": declared.default or None,  # recorded: a zero isn't filled in
            "one_of": declared.values,
            "conflicts": _beside(declared, path),
            "same": suppress.same_or(declared.unset)
            if declared.unset
            else suppress.FUNCTIONS.get(declared.suppress),
            "listed": listed and kind in (Kind.BLOCK, Kind.STRING),
            "single": at is not None
            and "properties" in (self._element(at) or {})
            and not listed
            and "additionalProperties" not in at
            and kind in (Kind.BLOCKS, Kind.BLOCK_SET),
            "text": self.library and kind is Kind.INT and at is not None and at.get("type") == "string",
        }
        if kind in (Kind.BLOCK, Kind.BLOCKS, Kind.BLOCK_SET) and "fields" not in more:
            attributes["fields"] = tuple(self._nested(about.shape, declared, self._element(at), path))
        return {**attributes, **more}

    def _nested(
        self, shape: str, declared: terraform.Declared, schema: Schema | None, path: str
    ) -> Iterator[Field]:
        for about in sdk.nested(self.module, shape).values():
            made = self.field(
                about,
                declared.nested,
                schema,
                f"{path}.{about.name}",
                output=False,
                unplaced=schema is None,
            )
            if made is not None:
                yield Field(about.name, **{**made, "rest": about.name if schema is None else made["rest"]})

    def _excepted(self, path: str) -> dict[str, Any]:
        return {
            key: value
            for paths, more in self.exceptions.items()
            if any(fnmatchcase(path, pattern) for pattern in paths.split())
            for key, value in expanded(more).items()
        }

    def named(self, name: str) -> Schema:
        """Return the document's schema of that name."""
        schema: Schema = _document(self.document)["schemas"][name]
        return schema

    def answer(self, path: str) -> Schema | None:
        """Return the schema of the answer to a GET of `path`; None if the document has no such method."""
        name = _answers(self.document).get(_shape(path))
        return self.named(name) if name else None

    def _at(self, shape: Schema | None, place: str | None) -> Schema | None:
        for part in (place or "").split("."):
            shape = (self._element(shape) or {}).get("properties", {}).get(part)
        return shape

    def _element(self, shape: Schema | None) -> Schema | None:
        """Return the schema behind a list or a reference."""
        if shape is not None and shape.get("type") == "array":
            shape = shape["items"]
        if shape is not None and isinstance(shape.get("additionalProperties"), dict):
            shape = shape["additionalProperties"]
        return self.named(shape["$ref"]) if shape is not None and "$ref" in shape else shape


def _place(shape: Schema | None, name: str) -> str | None:
    properties = (shape or {}).get("properties", {})
    singular = (name.removesuffix("s"), name.removesuffix("es"), name.removesuffix("ies") + "y")
    for path in (name, *singular):
        if path in properties:
            return path
    return next((key for key in properties if key.lower() == name.lower()), None)


def _kind(about: sdk.Property) -> Kind:
    if about.mapping:
        return Kind.MAP
    if about.shape in _KINDS:
        return Kind.LIST if about.many else _KINDS[about.shape]
    if about.shape in _ASSETS:
        return Kind.ASSET
    return Kind.BLOCKS if about.many else Kind.BLOCK


def _beside(declared: terraform.Declared, path: str) -> tuple[str, ...]:
    """Return the properties of the same block that exclude it, by their names in the SDK."""
    block, own = path.split(".")[:-1], terraform.compact(path.rpartition(".")[2])
    return tuple(
        _camel(name)
        for *above, name in (conflict.split(".") for conflict in declared.conflicts)
        if len(above) == len(block) and terraform.compact(name) != own
    )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value(text: str | None, kind: Kind) -> Any:
    """Return a value from an exception's text."""
    match kind:
        case Kind.STRING if text and text != "null":
            return text.strip('"')
        case Kind.BOOL if text in ("true", "false"):
            return text == "true"
        case Kind.INT if text and text.isdigit():
            return int(text)
        case Kind.NUMBER if text:
            return float(text)
    return None


@cache
def _document(name: str) -> Mapping[str, Any]:
    file = resources.files("googleapiclient") / "discovery_cache" / "documents" / f"{name}.json"
    document: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


@cache
def _answers(document: str) -> Mapping[str, str]:
    """Names of the schemas that GETs answer, by their paths."""
    base = _document(document)["servicePath"]
    return {
        _shape(base + method.get("flatPath", method["path"])): method["response"]["$ref"]
        for method in _methods(_document(document))
        if method["httpMethod"] == "GET" and "$ref" in method.get("response", {})
    }


def _methods(resource: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from resource.get("methods", {}).values()
    for nested in resource.get("resources", {}).values():
        yield from _methods(nested)


def _shape(path: str) -> str:
    """Return a path without its parameters' names."""
    return re.sub(r"\{[^}]*\}", "{}", path.strip("/"))
