"""Outages of storage: their detection, and the retries of orbax's clients.

Transient: HTTP 408, 429 and 5xx, no connection, no answer in time. Anything else (403, 404, a full disk) is
a refusal, which a retry doesn't change.
"""

import asyncio
import inspect
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import requests
from google.auth import exceptions as auth

RETRY_AT_MOST_EVERY_S = 4.0  # longest delay of a client after the end of an outage
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_IN_TEXT = re.compile(r"\[(http_response|curl)_code='(\d+)'")  # in tensorstore's messages
_UNREACHED = (ConnectionError, requests.ConnectionError, requests.Timeout, auth.TransportError)


def transient(error: BaseException) -> str:
    """Return a transient answer of storage, such as `HTTP 503`; empty for any other error."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        status = getattr(cause, "code", None) or getattr(response, "status_code", None)
        if isinstance(status, int | str) and str(status).isdecimal():
            return f"HTTP {status}" if int(status) in _TRANSIENT else ""
        if isinstance(cause, requests.exceptions.ProxyError):  # gcsfs's exception for a 502
            return "HTTP 502"
        if isinstance(cause, _UNREACHED) or _of_aiohttp(cause):
            return "no connection"
        if match := _IN_TEXT.search(str(cause)):
            if match[1] == "curl":
                return "no connection"
            return f"HTTP {match[2]}" if int(match[2]) in _TRANSIENT else ""
        if isinstance(cause, TimeoutError):
            return "no answer in time"
    return ""


def _of_aiohttp(error: BaseException) -> bool:
    """Return True for gcsfs's connection errors; aiohttp is only imported if gcsfs is used."""
    aiohttp = sys.modules.get("aiohttp")
    return aiohttp is not None and isinstance(error, aiohttp.ClientError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or getattr(cause, "cause", None)


class Health:
    """Health of storage, from the results of all requests. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._since: float | None = None
        self._answer = ""
        self.last_failure = -float("inf")  # by the clock

    def failed(self, error: BaseException) -> None:
        """Record a failed attempt. 429 means that a single object is written too often, and is no outage."""
        answer = transient(error)
        if not answer or answer == "HTTP 429":
            return
        with self._lock:
            self.last_failure = self._clock()
            self._since = self.last_failure if self._since is None else self._since
            self._answer = answer

    def answered(self) -> None:
        """Record a successful attempt."""
        with self._lock:
            self._since = None

    def outage(self) -> str:
        """Return the answer of storage and its duration; empty while it serves."""
        with self._lock:
            return "" if self._since is None else f"{self._answer} for {self._clock() - self._since:.0f} s"


HEALTH = Health()  # of this process's storage
_give_up_at = -float("inf")  # monotonic time of gcsfs's last retry


def try_until(give_up_at: float) -> None:
    """Let gcsfs, which creates orbax's folders, metadata and markers, retry until a monotonic time."""
    global _give_up_at
    _patient()
    _give_up_at = give_up_at


@cache
def _patient() -> None:
    """Replace the retries of orbax's two clients of Cloud Storage.

    gcsfs gives up after six attempts, 34 s, without a setting for it; tensorstore continues for minutes,
    but waits up to 32 s between two attempts.
    """
    import gcsfs  # type: ignore[import-untyped]
    from gcsfs.retry import is_retriable  # type: ignore[import-untyped]
    from orbax.checkpoint._src.serialization import tensorstore_utils  # type: ignore[import-untyped]

    once = inspect.unwrap(gcsfs.GCSFileSystem._request)

    async def request(self: Any, *arguments: Any, **named: Any) -> Any:
        wait_s = 0.5
        while True:
            try:
                answer = await once(self, *arguments, **named)
            except Exception as error:
                if not is_retriable(error):
                    raise
                HEALTH.failed(error)
                if time.monotonic() > _give_up_at:
                    raise
            else:
                HEALTH.answered()
                return answer
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_AT_MOST_EVERY_S)

    gcsfs.GCSFileSystem._request = request
    retries = {"max_retries": 200, "initial_delay": "500ms", "max_delay": f"{RETRY_AT_MOST_EVERY_S:g}s"}
    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        context["gcs_request_retries"] = retries
