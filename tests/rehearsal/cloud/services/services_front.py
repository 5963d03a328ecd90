"""An emulated cloud in a thread, on a loopback port, with what resources refer to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from google.oauth2.credentials import Credentials
from official import OWNER, PROJECT, Door
from tpu_lab import PretendedHosts

from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import NO_LAGS, CloudConfig
from tests.limits import HANG_S

LOCATION = f"projects/{PROJECT}/locations/us-east5"
APIS = (
    "aiplatform", "artifactregistry", "billingbudgets", "cloudfunctions", "cloudscheduler", "compute",
    "container", "dataproc", "eventarc", "iam", "logging", "monitoring", "pubsub", "run", "secretmanager",
    "storage", "tpu", "workflowexecutions", "workflows",
)  # fmt: skip


class Services(Door):
    """The cloud, and what the resources of the tests refer to."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        config = CloudConfig(
            PROJECT, folder / "cloud", folder / "control", OWNER, "1//refresh", front_door="127.0.0.1:0",
            metadata="", clock_rate=1000.0, enabled_apis=tuple(f"{api}.googleapis.com" for api in APIS),
            **NO_LAGS,
        )  # fmt: skip
        self._call(self._open(config))
        super().__init__(self.cloud.port)

    async def _open(self, config: CloudConfig) -> None:
        self.cloud = Cloud(config, PretendedHosts())
        await self.cloud.start()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @contextmanager
    def still(self) -> Iterator[None]:
        """No virtual time passes, however slowly this machine asks."""
        self._call(self._tick(0.0))
        try:
            yield
        finally:
            self._call(self._tick(1000.0))

    async def _tick(self, rate: float) -> None:
        self.cloud.world.clock.rate = rate

    def credentials(self, principal: str) -> Credentials:
        async def mint() -> str:
            return self.cloud.iam.mint(principal).value

        return Credentials(token=self._call(mint()))  # type: ignore[no-untyped-call]

    def request(self, method: str, url: str, body: Any = None) -> Any:
        """The answer to one request of the owner's to `HOST/PATH`, which must be fine."""
        host, _, path = url.partition("/")
        headers = {"Host": host, "Authorization": f"Bearer {self.credentials(OWNER).token}"}
        answer = requests.request(
            method, f"http://127.0.0.1:{self.port}/{path}", json=body, headers=headers, timeout=HANG_S
        )
        assert answer.ok, answer.text
        return answer.json()

    def make_compute(self, path: str, body: Any) -> None:
        started = self.request("POST", f"compute.googleapis.com/compute/v1/projects/{PROJECT}/{path}", body)
        link = started["selfLink"].removeprefix("https://www.googleapis.com/")
        done = self.request("POST", f"compute.googleapis.com/{link}/wait")
        assert "error" not in done, done

    def furnish(self) -> None:
        """A network, a bucket with an object, an account and a topic."""
        self.make_compute("global/networks", {"name": "net", "autoCreateSubnetworks": False, "mtu": 8896})
        subnet = {"name": "subnet", "network": f"projects/{PROJECT}/global/networks/net"}
        subnet |= {"ipCidrRange": "10.0.0.0/24", "privateIpGoogleAccess": True}
        self.make_compute("regions/us-east5/subnetworks", subnet)
        bucket = {"name": "bucket-of-tests", "location": "us-east5"}
        self.request("POST", f"storage.googleapis.com/storage/v1/b?project={PROJECT}", bucket)
        upload = "storage.googleapis.com/upload/storage/v1/b/bucket-of-tests/o?uploadType=media&name=f.zip"
        self.request("POST", upload, {})
        account = {"accountId": "worker"}
        self.request("POST", f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", account)
        self.request("PUT", f"pubsub.googleapis.com/v1/projects/{PROJECT}/topics/topic-of-tests", {})
        workflow = {"sourceContents": "- wait: {call: sys.sleep, args: {seconds: 86400000}}"}
        self.request("POST", f"workflows.googleapis.com/v1/{LOCATION}/workflows?workflowId=base", workflow)

        cluster = {"name": "base", "initialNodeCount": 1, "network": "net", "subnetwork": "subnet"}
        self.request("POST", f"container.googleapis.com/v1/{LOCATION}/clusters", {"cluster": cluster})

    def grant(self, role: str, member: str) -> None:
        """A role on the project."""
        project = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
        policy = self.request("POST", f"{project}:getIamPolicy", {})
        policy["bindings"].append({"role": role, "members": [member]})
        self.request("POST", f"{project}:setIamPolicy", {"policy": policy})

    def preempt(self, node: str) -> None:
        self._call(self.cloud.nodes.preempt(node, notice=False))

    def mistakes(self) -> list[str]:
        """What the cloud has done wrong since it was last asked, answers of other schemas too."""
        found, self.cloud.world.mistakes[:] = list(self.cloud.world.mistakes), []
        return found

    def close(self) -> None:
        self._call(self.cloud.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)
