"""Ids of resources at Google and of a cluster's objects, as an import takes them, from type and inputs.

The forms are those of the "Import" sections of the provider's documentation, by type; where an import wants
another form than the state keeps (members of policies), the provider hands the state's one back. Ids that
Google chooses are found by display names, in lists.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from infra.core.lookup import Lookup
from infra.engine.registry import layers
from infra.errors import CommandError
from infra.google.client import NO_QUERY, Client
from infra.google.ids import FORMS


def forms() -> Mapping[str, str]:
    """Return the id formats of all types, those that layers declare included."""
    return {**FORMS, **{kind: form for layer in layers() for kind, form in layer.ids.items()}}


def google_id(kind: str, inputs: Mapping[str, Any], project: str) -> str | None:
    """Return the id of a resource once it is made; None where it can't be derived.

    `project` is the provider's, for resources that name none.
    """
    if kind.startswith("kubernetes:"):  # https://www.pulumi.com/registry/packages/kubernetes/, "Import"
        meta = inputs.get("metadata", {})
        return "/".join(filter(None, (meta.get("namespace"), meta.get("name")))) or None
    try:
        id_ = forms()[kind].format_map({"project": project, **inputs})
    except KeyError:
        return None
    condition = inputs.get("condition")  # of a member of a policy; its title tells bindings of a role apart
    return f"{id_} {condition['title']}" if condition else id_


def lookup(kind: str) -> Lookup | None:
    """Return a type's lookup; None if its ids follow from inputs, or aren't known."""
    return next((layer.hooks.lookups[kind] for layer in layers() if kind in layer.hooks.lookups), None)


def find_id(
    kind: str, inputs: Mapping[str, Any], project: str, known: Collection[str], client: Client | None = None
) -> str | None:
    """Return the id of an interrupted creation; None where Google has none of its name.

    `known`: ids of others in the state. Raises CommandError where several have its name, RequestError where
    Google doesn't answer.
    """
    place = lookup(kind)
    assert place, f"{kind} has a lookup"
    name = inputs.get("displayName") or json.loads(inputs.get("dashboardJson", "{}")).get("displayName")
    listed = (client or Client(project)).items(place.url(inputs, project), place.key, NO_QUERY)
    ids = [
        str(item["name"]) for item in listed if item.get("displayName") == name and item["name"] not in known
    ]
    if len(ids) > 1:
        raise CommandError(
            f"Google has {len(ids)} called {name!r}, and one of them was being made: {', '.join(ids)}\n"
            "    fix: delete all but one of them, and call this again"
        )
    return ids[0] if ids else None
