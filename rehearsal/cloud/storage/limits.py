"""How often one object name may be written.

https://cloud.google.com/storage/quotas: one write a second to the same object name, above which requests
"might" be throttled, with 429 (https://cloud.google.com/storage/docs/gcs429). When Google begins to is not
documented; here five mutations may come at once (a checkpoint of Orbax makes four of one
manifest), and from then on one a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rehearsal.cloud.service import ApiError

BURST = 5
_REMEMBERED = 10_000


class MutationLimit:
    """Counts creations, updates and deletions by object; real seconds, because clients back off in them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        # When the object's mutations so far will have used up their second each.
        self._paid: dict[str, float] = {}

    def spend(self, bucket: str, name: str) -> None:
        """ApiError 429 if this mutation comes too soon after others."""
        resource, now = f"{bucket}/{name}", self.now()
        paid = max(self._paid.get(resource, 0.0), now)
        if paid - now > BURST - 1:
            raise ApiError(
                429,
                "RESOURCE_EXHAUSTED",
                f"The object {resource} exceeded the rate limit for object mutation operations (create, "
                "update, and delete). Please reduce your request rate. See "
                "https://cloud.google.com/storage/docs/gcs429.",
                reason="rateLimitExceeded",
            )
        self._paid[resource] = paid + 1
        if len(self._paid) > _REMEMBERED:
            self._paid = {resource: until for resource, until in self._paid.items() if until > now}
