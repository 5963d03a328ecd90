"""Notices that the machine will be taken away, and the step at which all workers stop.

Two things announce it: the metadata server's `instance/preempted` and systemd's SIGTERM.
The first is turned into the second; JAX's preemption service then tells every worker and
names one step, not yet reached by any, at which all of them save.
"""

import http.client
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Mapping

from jax.experimental import multihost_utils

_POLL_S = 60  # the server answers an unchanged value after this long
_BACK_OFF_S = 2.0
_GIVE_UP_S = 20.0  # at the start: no metadata server, no watcher


class Preemption:
    """Whether to stop at this step. Made once `Cluster.join` is done.

    Attributes:
        event: what to call it: preempted, or interrupted by Ctrl-C.
    """

    def __init__(self, workers: int):
        self._alone = workers == 1
        self._noticed = False
        self.event = "preempted"
        if self._alone:  # with others JAX has its own handler in place
            signal.signal(signal.SIGTERM, self._notice)
            signal.signal(signal.SIGINT, self._interrupt)

    def _notice(self, *_: object) -> None:
        self._noticed = True

    def _interrupt(self, *_: object) -> None:
        """Ctrl-C: saves as on a notice; the next one doesn't wait for that."""
        self._noticed, self.event = True, "interrupted"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("Ctrl-C: leaves a checkpoint after this step; once more ends it at once", flush=True)

    def reached(self, step: int) -> bool:
        """True at the one step where every worker saves and leaves.

        To be asked exactly once a step, by all workers.
        """
        if self._alone:
            return self._noticed
        return bool(multihost_utils.reached_preemption_sync_point(step))


def watch_metadata(environment: Mapping[str, str]) -> threading.Thread:
    """Starts a thread that sends this process SIGTERM when the metadata server says preempted.

    The server is $GCE_METADATA_HOST or metadata.google.internal; where nobody answers,
    the thread ends.
    """
    arguments = (_url(environment),)
    thread = threading.Thread(target=_watch, args=arguments, name="preemption-watch", daemon=True)
    thread.start()
    return thread


def taken(environment: Mapping[str, str]) -> bool:
    """Whether it is this machine that is taken away, and not one of another slice of the job."""
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
        except (OSError, http.client.HTTPException):  # an answer cut off is no OSError
            if not etag and time.monotonic() > give_up:
                return
            time.sleep(_BACK_OFF_S)
            continue
        if value == "TRUE":
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _get(url: str, etag: str) -> tuple[str, str]:
    """The value and its ETag; with an ETag at hand, only once the value has changed."""
    if etag:
        url += f"?wait_for_change=true&timeout_sec={_POLL_S}&last_etag={etag}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=_POLL_S + 10) as answer:
        return answer.read().decode().strip(), answer.headers.get("ETag", "0")
