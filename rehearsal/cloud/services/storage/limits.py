"""Rate limit of mutations of one object name.

https://cloud.google.com/storage/quotas: one write a second to the same object name, above which requests
"might" be throttled, with 429 (https://cloud.google.com/storage/docs/gcs429). When Google begins to is not
documented; here five mutations may come at once (a checkpoint of Orbax makes four of one
manifest), and from then on one a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rehearsal.cloud.core.clock import by_virtual_clock
from rehearsal.cloud.core.errors import ApiError

BURST = 5
_REMEMBERED = 10_000


class MutationLimit:
    """Counts creations, updates and deletions by object: in real seconds, in which clients back off, and in
    virtual ones those of users' programs in Google's services, which the virtual clock starts.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, virtual: Callable[[], float] | None = None
    ) -> None:
        self.now, self._virtual = now, virtual
        # When the object's mutations so far will have used up their second each; of each clock.
        self._paid: dict[bool, dict[str, float]] = {False: {}, True: {}}

    def spend(self, bucket: str, name: str) -> None:
        """ApiError 429 if this mutation comes too soon after others."""
        virtual = self._virtual if by_virtual_clock.get() else None
        resource, now, spent = f"{bucket}/{name}", (virtual or self.now)(), self._paid[bool(virtual)]
        paid = max(spent.get(resource, 0.0), now)
        if paid - now > BURST - 1:
            raise ApiError(
                429,
                "RESOURCE_EXHAUSTED",
                f"The object {resource} exceeded the rate limit for object mutation operations (create, "
                "update, and delete). Please reduce your request rate. See "
                "https://cloud.google.com/storage/docs/gcs429.",
                reason="rateLimitExceeded",
            )
        spent[resource] = paid + 1
        if len(spent) > _REMEMBERED:
            self._paid[bool(virtual)] = {name: until for name, until in spent.items() if until > now}
