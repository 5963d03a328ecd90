"""An emulated cloud in a thread, on a loopback port, with what resources refer to."""

from __future__ import annotations

from typing import Any

from cloud_front import NUMBER, PROJECT, CloudFront
from google.oauth2.credentials import Credentials
from official import Door

LOCATION = f"projects/{PROJECT}/locations/us-east5"


class Services(CloudFront, Door):
    """The cloud, and what the resources of the tests refer to."""

    def credentials(self, principal: str) -> Credentials:
        return Credentials(token=self.token_of(principal))  # type: ignore[no-untyped-call]

    def made(self, method: str, url: str, body: Any = None) -> Any:
        """The answer to one request of the owner's to `HOST/PATH`, which must be fine."""
        reply = self.request(method, url, body)
        assert reply.status < 300, reply.body
        return reply.json

    def furnish(self) -> None:
        """A network, a bucket with an object, an account and a topic."""
        self.done(self.compute("POST", "global/networks", {"name": "net", "autoCreateSubnetworks": False}))
        subnet = {"name": "subnet", "network": f"projects/{PROJECT}/global/networks/net"}
        subnet |= {"ipCidrRange": "10.0.0.0/24", "privateIpGoogleAccess": True}
        self.done(self.compute("POST", "regions/us-east5/subnetworks", subnet))
        bucket = {"name": "bucket-of-tests", "location": "us-east5"}
        self.made("POST", f"storage.googleapis.com/storage/v1/b?project={PROJECT}", bucket)
        upload = "storage.googleapis.com/upload/storage/v1/b/bucket-of-tests/o?uploadType=media&name=f.zip"
        self.made("POST", upload, {})
        builder = f"serviceAccount:{NUMBER}-compute@developer.gserviceaccount.com"  # of functions, by default
        self.grant(f"projects/{PROJECT}", "roles/storage.objectViewer", builder)
        account = {"accountId": "worker"}
        self.made("POST", f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", account)
        self.made("PUT", f"pubsub.googleapis.com/v1/projects/{PROJECT}/topics/topic-of-tests", {})
        service = {"template": {"containers": [{"image": "us-docker.pkg.dev/cloudrun/container/hello"}]}}
        self.made("POST", f"run.googleapis.com/v2/{LOCATION}/services?serviceId=base", service)
        cluster = {"name": "base", "initialNodeCount": 1, "network": "net", "subnetwork": "subnet"}
        self.made("POST", f"container.googleapis.com/v1/{LOCATION}/clusters", {"cluster": cluster})

    def mistakes(self) -> list[str]:
        """Errors of the emulation since the last call, answers of other schemas included."""
        result, self.cloud.world.mistakes[:] = list(self.cloud.world.mistakes), []
        return result
