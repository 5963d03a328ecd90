"""Preemption notices, and the step at which all workers stop.

A notice is the metadata server's `instance/preempted`, which is turned into SIGTERM, or SIGTERM itself.
JAX's preemption service then notifies every worker of one future step, at which all of them save.
"""

import http.client
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Mapping

from jax.experimental import multihost_utils

_POLL_S = 60  # the server returns an unchanged value after this time
_BACK_OFF_S = 2.0
_GIVE_UP_S = 20.0  # without a metadata server at the start


class Preemption:
    """Stop condition of a run. Create it after `Cluster.join`.

    Attributes:
        event: kind of the log event: preempted, or interrupted by Ctrl-C.
        stops: True once `reached` has been.
    """

    def __init__(self, workers: int):
        self._alone = workers == 1
        self._noticed = self.stops = False
        self._calls = 0
        self.event = "preempted"
        if self._alone:  # with several workers JAX has a handler of its own
            signal.signal(signal.SIGTERM, self._notice)
            signal.signal(signal.SIGINT, self._interrupt)

    def _notice(self, *_: object) -> None:
        self._noticed = True

    def _interrupt(self, *_: object) -> None:
        """Save as on a notice; the next Ctrl-C doesn't wait."""
        self._noticed, self.event = True, "interrupted"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("Ctrl-C: saving a checkpoint after this step; press again to end at once", flush=True)

    def reached(self) -> bool:
        """Return True at the single call at which every worker saves and leaves.

        All workers must call it equally often.
        """
        self._calls += 1
        self.stops = self._noticed if self._alone else self._all_reached()
        return self.stops

    def _all_reached(self) -> bool:
        return bool(multihost_utils.reached_preemption_sync_point(self._calls))


def watch_metadata(environment: Mapping[str, str]) -> threading.Thread:
    """Start a thread that sends this process SIGTERM on the metadata server's notice.

    The server is $GCE_METADATA_HOST or metadata.google.internal; without one the thread ends.
    """
    arguments = (_url(environment),)
    thread = threading.Thread(target=_watch, args=arguments, name="preemption-watch", daemon=True)
    thread.start()
    return thread


def taken(environment: Mapping[str, str]) -> bool:
    """Return True if this machine is preempted, rather than one of another slice of the job."""
    try:
        return _get(_url(environment), "")[0] == "TRUE"
    except (OSError, http.client.HTTPException):
        return False


def _url(environment: Mapping[str, str]) -> str:
    host = environment.get("GCE_METADATA_HOST", "metadata.google.internal")
    return f"http://{host}/computeMetadata/v1/instance/preempted"


def _watch(url: str) -> None:
    etag, give_up = "", time.monotonic() + _GIVE_UP_S
    while True:
        try:
            value, etag = _get(url, etag)
        except (OSError, http.client.HTTPException):  # a truncated response is no OSError
            if not etag and time.monotonic() > give_up:
                return
            time.sleep(_BACK_OFF_S)
            continue
        if value == "TRUE":
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _get(url: str, etag: str) -> tuple[str, str]:
    """Get the value and its ETag; given an ETag, wait until the value has changed."""
    if etag:
        url += f"?wait_for_change=true&timeout_sec={_POLL_S}&last_etag={etag}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=_POLL_S + 10) as response:
        return response.read().decode().strip(), response.headers.get("ETag", "0")
