"""Runs pytest again and again in forks of a process that has imported what costs time: not what is tested.

Reads JSON lines, `{"arguments": [...], "environment": {...}, "timeout_s": 60}`, in the tree that it is
started in; answers `{"status": 1, "output": "..."}`. The status is pytest's, or 124 after the timeout.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any

PACKAGES = (
    "aiohttp.test_utils", "google.auth", "google.cloud.storage", "googleapiclient.discovery", "grpc.aio",
    "hypothesis", "jsonschema", "pulumi", "pulumi_gcp.compute", "pulumi_gcp.kms", "pulumi_gcp.projects",
    "pulumi_gcp.serviceaccount", "pulumi_gcp.storage", "pulumi_gcp.tpu", "pytest", "pytest_asyncio",
    "pytest_timeout", "requests", "rich", "xdist", "yaml",
)  # fmt: skip
TIMED_OUT = 124


def run(order: dict[str, Any]) -> dict[str, Any]:
    """One run in a fork, with all that it started ended."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.environ.update(order["environment"])
            import pytest

            os._exit(_exit_status(pytest, order["arguments"]))
        status = _awaited(child, time.monotonic() + order["timeout_s"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        output.seek(0)
        return {"status": status, "output": output.read()[-6000:]}


def _exit_status(pytest: Any, arguments: list[str]) -> int:
    try:
        status = int(pytest.main(arguments))
    except BaseException as error:
        print(repr(error))
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _awaited(child: int, until: float) -> int:
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT


def main() -> None:
    sys.path[0] = os.getcwd()
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
