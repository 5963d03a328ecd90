"""Variables and secrets of a job on a host that really boots: they reach its program, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import pytest

from infra.settings.variables import Variables

from .lab import Host, ready, until
from .storage import BUCKET, client_of

pytestmark = [pytest.mark.root, pytest.mark.slow]

VALUE = "s3cr3t-of-the-lab-0123456789"
RUN = """bash -c 'echo "$A|$(printf %s "$HF_TOKEN" | sha256sum)|${TPU_SECRETS-none}"; exec /bin/sleep 600'"""
# Everything that a boot writes; not what the kernel shows, where a process has its environment.
_STORED = "etc run var opt tmp home root mnt"


def test_a_secret_reaches_the_program_and_appears_nowhere_else(
    make_host: Callable[..., Host], gcs: str
) -> None:
    given = Variables({"A": 'a "b" 50% $HOME'}, ("hf-token",)).environment
    lines = "\n".join(f"{name}={value}" for name, value in given.items())
    host = make_host(tpu_run=RUN, tpu_variables=lines)
    host.lab.front.secrets["hf-token/versions/latest"] = f"{VALUE}\n"
    ready(host)
    digest = hashlib.sha256(VALUE.encode()).hexdigest()
    expected = f'a "b" 50% $HOME|{digest}  -|none'
    logged = host.lab.front.logged
    until(lambda: any(entry.get("textPayload") == expected for entry in logged), host)

    pid = host.run("systemctl", "show", "--property=MainPID", "--value", "tpu-job").strip()
    environment = host.run("cat", f"/proc/{pid}/environ").split("\0")
    assert f"HF_TOKEN={VALUE}" in environment
    assert not any(variable.startswith("TPU_SECRETS=") for variable in environment)

    assert VALUE not in json.dumps([*logged, host.lab.metadata.values, host.lab.metadata.written])
    assert VALUE not in host.run("systemctl", "show", "tpu-job", "tpu-heartbeat")
    assert VALUE not in host.run("journalctl", "--output=export")
    assert host.run("sh", "-c", f"cd / && grep -rlI {VALUE} {_STORED} 2>/dev/null", check=False).strip() == ""
    for blob in client_of(gcs).list_blobs(BUCKET):
        assert VALUE.encode() not in blob.download_as_bytes(), blob.name
