"""Refusal of requests to a region in which Google hasn't the service (google_facts/regions.toml), and of new
resources where the organization allows none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from google_facts import regions
from rehearsal.cloud.core import constraints
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World

_PLACE = re.compile(r"(projects/[^/]+/)?(?:locations|regions|zones)/([a-z0-9-]+)")
_NAMED = ("location", "region", "zone")


def require(call: Call, permission: str) -> None:
    """ApiError 403, as Google words it, if the service isn't in the region that a request is for.

    https://github.com/hashicorp/terraform-provider-google/issues/7001 (Cloud Scheduler) and
    https://github.com/hashicorp/terraform-provider-google/issues/4714 (Cloud Functions)
    """
    for place, parent, _ in _places(call):
        if not regions.lacks(call.api, place):
            continue
        text = f"Permission denied on 'locations/{place}' (or it may not exist)."
        if call.api == "cloudscheduler" and parent:
            text = (
                f'The principal (user or service account) lacks IAM permission "{permission}" for the '
                f'resource "{parent}" (or the resource may not exist).'
            )
        raise ApiError(403, "PERMISSION_DENIED", text)


def require_allowed(call: Call, world: World) -> None:
    """ApiError for a new resource in a location that `gcp.resourceLocations` doesn't allow.

    Of a resource within another nothing is published but that some services don't hold the constraint
    against it, so none does here; a bucket's location is in its body.
    https://cloud.google.com/resource-manager/docs/organization-policy/defining-locations
    """
    *_, collection, verb = call.method_id.split(".")
    if verb not in ("create", "insert"):
        return
    scope = "/".join(f"{key}s/{value}" for key, value in call.path.items())
    resource = f"{scope}/{collection}/{(call.body or {}).get('name', '')}"
    for place, parent, whole in _places(call):
        if place != "global" and whole in (place, parent):
            constraints.require(world, "gcp.resourceLocations", [place], call.api, resource)


def _places(call: Call) -> Iterator[tuple[str, str, str]]:
    """Yield locations of a path: each with the name that it ends, if any, and its whole parameter."""
    for name, value in call.path.items():
        match = _PLACE.match(value)
        if place := match[2] if match else value if name in _NAMED else "":
            yield place, match[0] if match else "", value
