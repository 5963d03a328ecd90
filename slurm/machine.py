"""The machine that this runs on: its metadata, as Compute Engine serves it, and its programs.

https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from __future__ import annotations

import http.client
import logging
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

from slurm.errors import SlurmError

_TIMEOUT_S = 10.0
_LOG = logging.getLogger(__name__)


class Metadata:
    """Attributes of this instance."""

    def __init__(self, host: str = ""):
        """Create a reader; `host`: of the server, instead of Google's."""
        host = host or os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._url = f"http://{host}/computeMetadata/v1/instance/attributes/"

    def value(self, key: str) -> str:
        """Return an attribute. Raises SlurmError if there is none, or no answer."""
        return self._read(key)[0]

    def wait(self, key: str, value: str, seconds: float) -> bool:
        """Wait until an attribute has another value, at most so long; return whether it has.

        A server that doesn't answer, as in a migration, counts as no change.
        """
        begun_s = time.monotonic()
        try:
            now, etag = self._read(key)
            if now != value:
                return True
            left_s = max(1, round(seconds - (time.monotonic() - begun_s)))
            query = f"?wait_for_change=true&timeout_sec={left_s}&last_etag={etag}"
            return self._read(key, query, left_s + _TIMEOUT_S)[0] != value
        except SlurmError as error:
            _LOG.warning("%s", error)
            time.sleep(max(0.0, seconds - (time.monotonic() - begun_s)))
            return False

    def _read(self, key: str, query: str = "", timeout_s: float = _TIMEOUT_S) -> tuple[str, str]:
        request = urllib.request.Request(f"{self._url}{key}{query}", headers={"Metadata-Flavor": "Google"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.read().decode().strip(), str(answer.headers.get("ETag", "0"))
        except urllib.error.HTTPError as error:
            why = "it has none" if error.code == 404 else f"HTTP {error.code}"
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            why = str(error)
        raise SlurmError(f"metadata {key}: {why}\n    fix: tpu up ENV slurm")


def call(line: Sequence[str], timeout_s: float = 60.0, text: str | None = None) -> str:
    """Run a program, which no shell reads; return its output.

    Args:
        line: program and arguments.
        timeout_s: limit; a program of Slurm's tries for 10 s to reach slurmctld.
        text: its input; none, unless given.

    Raises:
        SlurmError: it can't be run, fails, or takes too long.
    """
    shown = " ".join(line[:3])
    try:
        done = subprocess.run(
            line, input=text, stdin=subprocess.DEVNULL if text is None else None, capture_output=True,
            text=True, errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{shown}: no end after {timeout_s:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{shown}: {error.strerror}") from None
    if done.returncode:
        last_line = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1][:300]
        raise SlurmError(f"{shown}: status {done.returncode}: {last_line}")
    return done.stdout
