"""Constraints of organization policies, which a world can set (google_facts/constraints.toml)."""

from collections.abc import Iterable

from google_facts.constraints import block
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.core.world import World


def require(world: World, constraint: str, values: Iterable[str] = ()) -> None:
    """ApiError in Google's words if the constraint is set and doesn't list one of these values.

    Without values the constraint is one that is enforced or not.
    """
    if constraint not in world.constraints:
        return
    allowed = world.constraints[constraint]
    values = list(values)
    refused = next((value for value in values if value not in allowed), "")
    if refused or not values:
        known = block(constraint)
        words = known["words"].format(number=world.number, value=refused)
        raise ApiError(known["code"], known["status"], words, reason=known["reason"])
