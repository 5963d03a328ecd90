"""The monitoring layer on an emulated cloud, and hosts that print what real ones print.

Real are the program, the CLI, the plugin (the stand-in), the workload's heartbeats, events and shipper, and
the front door that takes their entries. Virtual time stands still, and jumps a minute at a time.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from rehearsal.cloud.core.world import Lags
from rehearsal.cloud.services.monitoring.telemetry import Incident
from rehearsal.cloud.services.serviceusage import NEW_PROJECT
from tests.infra.lab import BUCKET, OWNER, PROJECT, SETTINGS, Lab
from workload.host import heartbeat, logs

ZONE, REGION = "us-east5-b", "us-east5"
P = f"projects/{PROJECT}"
ACCOUNT = f"watched@{PROJECT}.iam.gserviceaccount.com"
APIS = (
    *NEW_PROJECT,
    *(
        f"{name}.googleapis.com"
        for name in ("billingbudgets", "cloudresourcemanager", "compute", "dataproc", "iam", "pubsub", "tpu")
    ),
)
WATCHED = f"""\
  monitoring:channels:
    - {{name: oncall, email: oncall@example.com}}
    - {{name: bus, topic: tpu-alerts}}
    - {{name: hook, webhook: "https://hooks.example.com/tpu"}}
  pipeline:rawBucketName: {PROJECT}-raw
  slurm:nodesets:
    - {{name: slurm, acceleratorType: v6e-16, zone: us-east5-b, spot: true, nodeCountDynamicMax: 8}}
"""
"""Settings of the layer, and of others that declare alerts."""
_cursors = itertools.count(1)


class Watched(Lab):
    """A lab in which the layer is up, although Monitoring knew its metrics minutes later only."""

    def __init__(self, folder: Path, settings: str = WATCHED) -> None:
        super().__init__(folder, apis=APIS, spark_python=sys.executable, lags=Lags(0, 0, 0, 0))
        self.settings.write_text(SETTINGS + settings)
        for layer in ("storage", "monitoring"):  # the first one knows the project's number
            self.pulumi(layer, "stack", "init", "dev")
        self.pulumi("storage", "up", "-s", "dev", "--yes", "--skip-preview")
        self.pulumi("monitoring", "up", "-s", "dev", "--yes", "--skip-preview")
        self.furnish()
        self.stop_clock()
        logging.getLogger("workload.host.logs").addFilter(_refuse)

    # Time

    def stop_clock(self) -> None:
        """From here on no virtual time passes but by `minutes`."""

        async def stop() -> None:
            self.cloud.world.clock.rate = 0.0

        self.call(stop())

    def close(self) -> None:
        logging.getLogger("workload.host.logs").removeFilter(_refuse)
        super().close()

    def minutes(self, count: float, after: Callable[[], None] | None = None) -> None:
        """So many minutes pass, with `after` called behind every one; policies are evaluated in each."""
        for _ in range(round(count)):
            self.call(self.cloud.world.clock.jump(60.0))
            if after:
                after()
        self.call(self._evaluate())

    async def _evaluate(self) -> None:
        self.cloud.telemetry.evaluate()

    # What fired

    def fired(self, since: int = 0) -> Counter[str]:
        """Incidents by their alert, from the one with this number on."""
        return Counter(alert_of(incident) for incident in self.cloud.telemetry.incidents[since:])

    def quiet(self) -> None:
        """Let all incidents close, once no window holds a fault any more."""
        for _ in range(4):  # a window may reach into the time of an earlier one; the longest has a day
            self.call(self.cloud.world.clock.jump(7 * 3600.0))
            self.minutes(2)
        still = [alert_of(incident) for incident in self.cloud.telemetry.incidents if not incident.closed_s]
        assert still == []

    # Hosts

    def printed(
        self,
        node: str,
        lines: list[str],
        unit: str = "tpu-job.service",
        worker: int = 0,
        bucket: str = BUCKET,
    ) -> None:
        """Lines of a worker, by way of the journal, go to Cloud Logging."""
        shared = self.shared(node, worker, bucket)
        token = self.environment["GOOGLE_OAUTH_ACCESS_TOKEN"]
        server = self.urls["logging.googleapis.com"]
        shipper = logs.Shipper(
            shared, threading.Event(), server=server, token=lambda: token, first_pause_s=0.1
        )
        entries = []
        for line in lines:
            number = next(_cursors)
            journal = {
                "__CURSOR": f"{node}-{number}",
                "__REALTIME_TIMESTAMP": str(number),
                "MESSAGE": line,
                "_SYSTEMD_UNIT": unit,
                "PRIORITY": "6",
            }
            _, entry = logs.entry(json.dumps(journal).encode())
            entries.append({**entry, "timestamp": self.cloud.world.clock.rfc3339()})
        if entries:
            shipper.send(entries)

    def alive(self, node: str, kind: str) -> None:
        """Write a node's report of each minute."""
        shared = self.shared(node, 0)
        entry = logs.alive(shared, kind)
        assert entry is not None
        token = self.environment["GOOGLE_OAUTH_ACCESS_TOKEN"]
        server = self.urls["logging.googleapis.com"]
        shipper = logs.Shipper(shared, threading.Event(), server=server, token=lambda: token)
        shipper.send([{**entry, "timestamp": self.cloud.world.clock.rfc3339()}])

    @staticmethod
    def shared(node: str, worker: int, bucket: str = BUCKET) -> dict[str, Any]:
        """As `logs.destination` reads it from a host's metadata."""
        attributes = {
            "project/project-id": PROJECT,
            "instance/id": f"{node}-{worker}",
            "instance/attributes/tpu-slice": node,
            "instance/attributes/tpu-zone": ZONE,
            "instance/attributes/tpu-bucket": bucket,
            "instance/attributes/agent-worker-number": str(worker),
        }
        with mock.patch.object(logs, "read", attributes.get):
            return logs.destination()

    # What faults need

    def furnish(self) -> None:
        """Create a network, an account and a topic's subscription through the front door."""
        compute = f"compute.googleapis.com/compute/beta/{P}"
        self.done(f"{compute}/global/networks", {"name": "watched", "autoCreateSubnetworks": False})
        subnet = {
            "name": "watched",
            "network": f"{P}/global/networks/watched",
            "ipCidrRange": "10.9.0.0/24",
            "privateIpGoogleAccess": True,
        }
        self.done(f"{compute}/regions/{REGION}/subnetworks", subnet)
        account = {"accountId": "watched", "serviceAccount": {"displayName": "watched"}}
        self.posted(f"iam.googleapis.com/v1/{P}/serviceAccounts", account)
        body = {"topic": f"{P}/topics/tpu-alerts"}
        answer = self.request("PUT", f"pubsub.googleapis.com/v1/{P}/subscriptions/watched", body)
        assert answer.ok, answer.text

    def posted(self, path: str, body: Any, **query: str) -> Any:
        """Return the answer of a request that must be accepted."""
        answer = self.request("POST", path, body, **query)
        assert answer.ok, answer.text
        return answer.json()

    def done(self, path: str, body: Any) -> None:
        """Send a request to Compute Engine and wait for its operation."""
        link = self.posted(path, body)["selfLink"].removeprefix("https://www.googleapis.com/")
        assert self.posted(f"compute.googleapis.com/{link}/wait", None)["status"] == "DONE"

    def create_node(self, node: str, kind: str = "v6e-1", refused: bool = False) -> None:
        """As Pulumi does it; `refused`: at once."""
        assert self.posted_node(node, kind).ok != refused
        self.minutes(15)  # more than a creation takes

    def posted_node(self, node: str, kind: str = "v6e-1") -> Any:
        """Return the answer to a creation."""
        body = {
            "acceleratorType": kind,
            "runtimeVersion": "v2-alpha-tpuv6e",
            "networkConfig": {
                "network": f"{P}/global/networks/watched",
                "subnetwork": f"{P}/regions/{REGION}/subnetworks/watched",
            },
            "schedulingConfig": {"spot": True},
            "serviceAccount": {"email": ACCOUNT},
            "metadata": {"startup-script": "#!/bin/bash\n", "tpu-slice": node},
        }
        path = f"tpu.googleapis.com/v2alpha1/{P}/locations/{ZONE}/nodes"
        return self.request("POST", path, body, nodeId=node)


class Beating:
    """A worker's heartbeat, whose minutes are the lab's."""

    def __init__(self, lab: Watched, node: str, worker: int = 0) -> None:
        self._lab, self._node, self._worker, self._now_s = lab, node, worker, 0.0
        self._heartbeat = heartbeat.Heartbeat(mock.Mock(), node, worker)
        self.report, self.measure, self.saved = (
            self.timed(getattr(self._heartbeat, name)) for name in ("report", "measure", "saved")
        )

    def timed(self, call: Callable[..., None]) -> Callable[..., None]:
        """Call at the lab's time."""

        def at_its_time(*arguments: Any, **named: Any) -> None:
            with mock.patch.object(heartbeat.time, "monotonic", return_value=self._now_s):
                call(*arguments, **named)

        return at_its_time

    def beat(self, state: str = "running", why: str = "") -> None:
        """Print in this minute; the next call is a minute later."""
        self._now_s += 60.0
        self._heartbeat._state = state
        facts = {"why": why} if why else {}
        with self.quietly() as out:
            self._heartbeat._facts |= facts
            self._heartbeat.print_event(state)
        self._lab.printed(self._node, out.getvalue().splitlines(), worker=self._worker)

    @contextmanager
    def quietly(self) -> Iterator[io.StringIO]:
        out = io.StringIO()
        with mock.patch.object(heartbeat.time, "monotonic", return_value=self._now_s), redirect_stdout(out):
            yield out


def alert_of(incident: Incident) -> str:
    """Return the name of the alert whose incident it is."""
    return str(incident.policy["userLabels"]["alert"])


def _refuse(record: logging.LogRecord) -> bool:
    raise AssertionError(record.getMessage())


__all__ = ["ACCOUNT", "OWNER", "PROJECT", "REGION", "ZONE", "Beating", "P", "Watched", "alert_of"]
