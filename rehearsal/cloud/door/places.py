"""Refusal of requests to a region in which Google hasn't the service (google_facts/regions.toml)."""

from __future__ import annotations

import re

from google_facts import regions
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.core.service import Call

_PLACE = re.compile(r"(projects/[^/]+/)?(?:locations|regions|zones)/([a-z0-9-]+)")
_NAMED = ("location", "region", "zone")


def require(call: Call, permission: str) -> None:
    """ApiError 403, as Google words it, if the service isn't in the region that a request is for.

    https://github.com/hashicorp/terraform-provider-google/issues/7001 (Cloud Scheduler) and
    https://github.com/hashicorp/terraform-provider-google/issues/4714 (Cloud Functions)
    """
    for name, value in call.path.items():
        match = _PLACE.match(value)
        place = match[2] if match else value if name in _NAMED else ""
        if not place or not regions.lacks(call.api, place):
            continue
        text = f"Permission denied on 'locations/{place}' (or it may not exist)."
        if call.api == "cloudscheduler" and match:
            text = (
                f'The principal (user or service account) lacks IAM permission "{permission}" for the '
                f'resource "{match[0]}" (or the resource may not exist).'
            )
        raise ApiError(403, "PERMISSION_DENIED", text)
