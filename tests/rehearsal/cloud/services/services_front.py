"""An emulated cloud in a thread, on a loopback port, with what resources refer to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.oauth2.credentials import Credentials
from official import Door

from tests.emulated import PROJECT, Emulated

LOCATION = f"projects/{PROJECT}/locations/us-east5"
APIS = (
    "aiplatform", "artifactregistry", "billingbudgets", "cloudfunctions", "cloudscheduler", "compute",
    "container", "dataproc", "eventarc", "iam", "logging", "monitoring", "pubsub", "run", "secretmanager",
    "storage", "tpu", "workflowexecutions", "workflows",
)  # fmt: skip


class Services(Emulated, Door):
    """The cloud, and what the resources of the tests refer to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, enabled_apis=tuple(f"{api}.googleapis.com" for api in APIS))

    def credentials(self, principal: str) -> Credentials:
        return Credentials(token=self.token_of(principal))  # type: ignore[no-untyped-call]

    def made(self, method: str, url: str, body: Any = None) -> Any:
        """The answer to one request of the owner's to `HOST/PATH`, which must be fine."""
        reply = self.request(method, url, body)
        assert reply.status < 300, reply.body
        return reply.json

    def make_compute(self, path: str, body: Any) -> None:
        started = self.made("POST", f"compute.googleapis.com/compute/v1/projects/{PROJECT}/{path}", body)
        link = started["selfLink"].removeprefix("https://www.googleapis.com/")
        done = self.made("POST", f"compute.googleapis.com/{link}/wait")
        assert "error" not in done, done

    def furnish(self) -> None:
        """A network, a bucket with an object, an account and a topic."""
        self.make_compute("global/networks", {"name": "net", "autoCreateSubnetworks": False, "mtu": 8896})
        subnet = {"name": "subnet", "network": f"projects/{PROJECT}/global/networks/net"}
        subnet |= {"ipCidrRange": "10.0.0.0/24", "privateIpGoogleAccess": True}
        self.make_compute("regions/us-east5/subnetworks", subnet)
        bucket = {"name": "bucket-of-tests", "location": "us-east5"}
        self.made("POST", f"storage.googleapis.com/storage/v1/b?project={PROJECT}", bucket)
        upload = "storage.googleapis.com/upload/storage/v1/b/bucket-of-tests/o?uploadType=media&name=f.zip"
        self.made("POST", upload, {})
        account = {"accountId": "worker"}
        self.made("POST", f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", account)
        self.made("PUT", f"pubsub.googleapis.com/v1/projects/{PROJECT}/topics/topic-of-tests", {})
        workflow = {"sourceContents": "- wait: {call: sys.sleep, args: {seconds: 86400000}}"}
        self.made("POST", f"workflows.googleapis.com/v1/{LOCATION}/workflows?workflowId=base", workflow)

        cluster = {"name": "base", "initialNodeCount": 1, "network": "net", "subnetwork": "subnet"}
        self.made("POST", f"container.googleapis.com/v1/{LOCATION}/clusters", {"cluster": cluster})

    def preempt(self, node: str) -> None:
        self.call(self.cloud.nodes.preempt(node, notice=False))

    def mistakes(self) -> list[str]:
        """Errors of the emulation since the last call, answers of other schemas included."""
        result, self.cloud.world.mistakes[:] = list(self.cloud.world.mistakes), []
        return result
