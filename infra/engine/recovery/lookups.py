"""Finds what was being made and whose id Google chooses: by its display name, in a list of its kind."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from infra.core.lookup import Lookup
from infra.engine.registry import layers
from infra.errors import CommandError
from infra.google.client import NO_QUERY, Client


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
