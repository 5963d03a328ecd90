"""Constraints of organization policies, which a world can set (google_facts/constraints.toml)."""

import re
from collections.abc import Iterable

from google_facts.constraints import block
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.core.world import World

_ZONE = re.compile("([a-z]+-[a-z]+[0-9]+)-[a-z]+")


def require(
    world: World, constraint: str, values: Iterable[str] = (), api: str = "", resource: str = ""
) -> None:
    """ApiError in Google's words if the constraint is set and doesn't list one of these values.

    Without values the constraint is one that is enforced or not. `api` and `resource` are those of the
    request, where an API has words of its own.
    """
    if constraint not in world.constraints:
        return
    allowed = world.constraints[constraint]
    values = list(values)
    refused = next((value for value in values if not {value, _group(value)} & {*allowed}), "")
    if refused or not values:
        known = block(constraint)
        known = {**known, **known.get("of", {}).get(api, {})}
        words = known["words"].format(
            number=world.number, project=world.project, value=refused, resource=resource,
            kind="ZONE" if _ZONE.fullmatch(refused) else "REGION",
        )  # fmt: skip
        raise ApiError(known["code"], known["status"], words, reason=known["reason"])


def _group(location: str) -> str:
    """Return the group that holds a region and its zones."""
    zone = _ZONE.fullmatch(location)
    return f"in:{zone[1] if zone else location}-locations"
