"""A job of two workers needs the ports that the network layer declares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.infra.recording import run
from tests.rehearsal.hosts.wire import Wire, environment

pytestmark = pytest.mark.root

# Workers meet as `workload train` lets them, then say something to one another by gloo.
WORKER = """
import sys
from workload.train.cluster import Cluster, Membership
from workload.train.config import ClusterConfig
from workload.errors import WorkloadError
worker, patience_s = map(int, sys.argv[1:])
config = ClusterConfig(start_timeout_s=patience_s)
try:
    Cluster.join(Membership(worker, 2, "10.128.0.2:8476"), config)
    from jax.experimental.multihost_utils import process_allgather
    print(process_allgather(worker).tolist())
except WorkloadError as error:
    sys.exit(str(error))
"""

# gloo listens at the address that the host's own name has.
NAMES = "10.128.0.2 w0\\n10.128.0.3 w1\\n127.0.0.1 localhost\\n"
NAMED = (
    f'mount -t tmpfs none /mnt && printf "{NAMES}" > /mnt/hosts && mount --bind /mnt/hosts /etc/hosts && '
    'hostname "$0" && exec "$@"'
)
AS_HOST = ("unshare", "--uts", "--mount", "sh", "-c", NAMED)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with closing(Wire()) as wire:
        for worker in (0, 1):
            wire.add(f"w{worker}", f"10.128.0.{2 + worker}", "ours", "", "tpu-slice")
        yield wire


def declared(without: str = "") -> list[dict[str, Any]]:
    """The network layer's firewalls as Google's API has them, but for one entry of their ports."""
    result = []
    for entry in run("network").of("gcp:compute/firewall:Firewall"):
        inputs = dict(entry.inputs)
        allowed = [
            {"IPProtocol": item["protocol"], "ports": [p for p in item.get("ports", ()) if p != without]}
            for item in inputs.pop("allows")
        ]
        del inputs["network"]
        result.append({**inputs, "allowed": allowed})
    return result


def outcome(wire: Wire, patience_s: int) -> list[tuple[int, str]]:
    """Exit status and output of each worker."""
    started = [
        wire.machines[f"w{worker}"](
            subprocess.Popen,
            [*AS_HOST, f"w{worker}", sys.executable, "-c", WORKER, str(worker), str(patience_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )
        for worker in (0, 1)
    ]
    return [(process.wait(), process.stdout.read()) for process in started if process.stdout]


@pytest.mark.prove
def test_with_all_of_them_it_starts(wire: Wire) -> None:
    wire.enforce(*declared())
    assert [(status, output.splitlines()[-1]) for status, output in outcome(wire, 60)] == [(0, "[0, 1]")] * 2


def test_without_the_coordinators_port_it_does_not_start_and_names_it(wire: Wire) -> None:
    wire.enforce(*declared(without="8476"))
    for status, output in outcome(wire, 4):
        assert status != 0
        assert "2 workers have not all met at 10.128.0.2:8476 after 2 s" in output
        assert "let the firewall pass the coordinator's port" in output
    assert wire.dropped("10.128.0.3", "10.128.0.2", 8476) > 0
