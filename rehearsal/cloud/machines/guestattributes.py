"""Guest attributes of a machine, which only its own metadata server writes.

https://cloud.google.com/compute/docs/metadata/manage-guest-attributes (as of 2026-04-10): any process of the
machine may write them, no client outside; ten queries a minute and machine, three in a second, beyond which
Google may remove what is being written. Here it is removed each time, and the writer gets no error.
That page names no sizes: those of other metadata hold here (…/setting-custom-metadata#limitations).
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject

log = logging.getLogger(__name__)

ENABLE = "enable-guest-attributes"
DISABLED = "Guest attributes endpoint access is disabled."

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_VALUE_BYTES = 256 * 1024
_ALL_BYTES = 512 * 1024
# (queries, in so many seconds)
_LIMITS = ((3, 1.0), (10, 60.0))


class GuestAttributes:
    """The guest attributes of one machine. Times are real: machines live in real time."""

    def __init__(self, machine: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._machine = machine
        self._now_s = now_s
        self._values: dict[str, dict[str, str]] = {}
        self._queries: deque[float] = deque(maxlen=max(count for count, _ in _LIMITS) + 1)

    # From inside the machine

    def read(self, path: list[str]) -> dict[str, Any] | str | None:
        """Return all, a namespace or a value; None if there is nothing."""
        self._query()
        if not path:
            return self._values
        namespace = self._values.get(path[0])
        if namespace is None or len(path) == 1:
            return namespace
        return namespace.get(path[1]) if len(path) == 2 else None

    def write(self, namespace: str, key: str, value: str) -> None:
        """Set a value, or lose it if this is one query too many; ApiError 400."""
        for name in (namespace, key):
            if not _NAME.fullmatch(name):
                raise ApiError(400, "INVALID_ARGUMENT", f"Invalid guest attribute name: {name}")
        now = {(n, k): v for n, values in self._values.items() for k, v in values.items()}
        sizes = [len(k) + len(v.encode()) for (_, k), v in (now | {(namespace, key): value}).items()]
        if len(value.encode()) > _VALUE_BYTES or sum(sizes) > _ALL_BYTES:
            raise ApiError(400, "INVALID_ARGUMENT", f"Guest attribute {namespace}/{key} is too large.")
        if self._query():
            self._values.setdefault(namespace, {})[key] = value
            return
        log.warning(
            "%s sends too many requests: its guest attribute %s/%s is removed", self._machine, namespace, key
        )
        self._remove(namespace, key)

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a value; return True if it existed."""
        self._query()
        return self._remove(namespace, key)

    def _remove(self, namespace: str, key: str) -> bool:
        removed = self._values.get(namespace, {}).pop(key, None) is not None
        if not self._values.get(namespace):
            self._values.pop(namespace, None)
        return removed

    def _query(self) -> bool:
        """Count a query; return True if it is within the limits."""
        now_s = self._now_s()
        self._queries.append(now_s)
        return all(
            sum(query_s > now_s - within_s for query_s in self._queries) <= count
            for count, within_s in _LIMITS
        )

    # From outside

    def agent_writes(self, namespace: str, key: str, value: str) -> None:
        """Write an attribute of Google's agent on the machine."""
        self._values.setdefault(namespace, {})[key] = value

    def entry(self, path: str) -> JsonObject:
        """Return the API's `GuestAttributes` for a query path: "", `<namespace>/` or `<namespace>/<key>`.

        ApiError 404 where there is nothing of that path, as compute's API words it of an instance
        (gcloud's ssh_utils looks for these words); of no path at all, an entry without items.
        """
        namespace, _, key = path.strip("/").partition("/")
        items = [
            {"namespace": n, "key": k, "value": v}
            for n, values in sorted(self._values.items())
            for k, v in sorted(values.items())
            if namespace in ("", n) and key in ("", k)
        ]
        if namespace and not items:
            text = f"The resource '{path}' of type 'Guest Attribute' was not found."
            raise ApiError(404, "NOT_FOUND", text)
        return {"queryPath": path, "queryValue": {"items": items} if items else {}}
