"""A boot disk without room: said within seconds, in the log and in the listing, and mended by making room."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.limits import HANG_S

from .lab import Host, failed, ready
from .storage import BUCKET, client_of

pytestmark = [pytest.mark.root, pytest.mark.slow]

FULL = "the boot disk is full: 0 MiB of / are free"


def why(gcs: str) -> str:
    """Return the only host's status in a listing, a moment after its own disk's."""
    deadline = time.monotonic() + HANG_S
    while True:
        (blob,) = client_of(gcs).list_blobs(BUCKET, prefix="boot/")
        if blob.metadata["state"] == "failed":
            return str(blob.metadata["why"])
        assert time.monotonic() < deadline, blob.metadata
        time.sleep(0.05)


def test_a_boot_on_a_full_disk_fails_and_says_so_until_there_is_room(
    make_host: Callable[..., Host], gcs: str
) -> None:
    host = make_host()
    ready(host)
    host.power_off()
    host.leave_free(0)
    last = failed(host, "bundle")
    more = host.run("dd", "if=/dev/zero", "of=/var/more", "bs=1M", "count=64", check=False)
    assert "No space left on device" in more
    assert FULL in last["log_tail"]
    assert why(gcs).startswith(FULL)
    host.power_off()
    host.leave_free(200)
    ready(host)


def test_a_disk_that_fills_while_the_bundle_is_fetched_is_waited_for_by_nobody(
    make_host: Callable[..., Host], gcs: str
) -> None:
    host = make_host()
    host.leave_free(80)
    last = failed(host, "bundle")
    assert "curl's status 23" in last["log_tail"], "what curl says of a file that it can't write"
    assert "the boot disk is full" in last["log_tail"].splitlines()[-1]
    assert last["attempt"] == 1
    assert "the boot disk is full" in why(gcs)
