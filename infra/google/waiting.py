"""Waiting for what Google has accepted and doesn't act by yet (google_facts/lags.toml)."""

import logging
import time
from collections.abc import Callable, Collection

from infra.google.failures import Kind

POLL_S = 1.0
_LOG = logging.getLogger(__name__)


def wait(
    holds: Callable[[], object],
    not_yet: Collection[Kind],
    end_s: float,
    what: str,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return True once `holds` returns something true; False at `end_s` of the monotonic clock.

    Failures of the kinds `not_yet` are waited out. After any other it returns False: the resource that meets
    it says better what is wrong.
    """
    from infra.google.client import RequestError  # here, so that no program waits for Google's libraries

    while time.monotonic() < end_s:
        try:
            if holds():
                return True
        except RequestError as error:
            if error.failure.kind not in not_yet:
                return False
        _LOG.info("waiting for %s", what)
        sleep(POLL_S)
    return False
