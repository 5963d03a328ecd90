"""Part of the test of clusters inside a world: requests to GKE's API, and kubectl by the DNS endpoint."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google.auth.transport.requests
from google.oauth2.credentials import Credentials

from rehearsal.cloud.control import Control
from rehearsal.scenario import disturbing
from rehearsal.scenario.scene import Scene

PROJECT = os.environ.get("GOOGLE_CLOUD_PROJECT", "")
REGION, ZONE = "us-east5", "us-east5-b"
LOCATION = f"https://container.googleapis.com/v1beta1/projects/{PROJECT}/locations/{REGION}"
COMPUTE = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}"
RESOURCES = f"https://cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
STORAGE, BUCKET = "https://storage.googleapis.com/storage/v1/b", f"{PROJECT}-of-pods"
ENABLE = f"https://serviceusage.googleapis.com/v1/projects/{PROJECT}/services:batchEnable"
CLUSTER: dict[str, Any] = {
    "name": "tpu", "network": "gke", "subnetwork": "gke", "initialNodeCount": 1, "locations": [ZONE],
    "ipAllocationPolicy": {"clusterSecondaryRangeName": "pods", "servicesSecondaryRangeName": "services"},
}  # fmt: skip
IDENTITY = {"desiredWorkloadIdentityConfig": {"workloadPool": f"{PROJECT}.svc.id.goog"}}
SLICE: dict[str, Any] = {
    "name": "v6e", "initialNodeCount": 4, "locations": [ZONE], "maxPodsConstraint": {"maxPodsPerNode": "15"},
    "config": {"machineType": "ct6e-standard-4t", "spot": True},
    "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"},
}  # fmt: skip


def home(account: str) -> str:
    return str(Path(os.environ["HOME"], f"{account}.json"))


class Person:
    """A user who is logged in."""

    def __init__(self, account: str, folder: Path):
        self.login, self.config = home(account), folder / f"{account}-kubeconfig.json"
        self._credentials = Credentials.from_authorized_user_file(self.login)  # type: ignore[no-untyped-call]
        self._session = google.auth.transport.requests.AuthorizedSession(self._credentials)  # type: ignore[no-untyped-call]

    def answer(self, method: str, url: str, body: Any = None) -> Any:
        answer = self._session.request(method, url, json=body)
        assert answer.ok, f"{method} {url}: {answer.status_code} {answer.text}"
        return answer.json()

    def text(self, url: str) -> str:
        answer = self._session.get(url)
        assert answer.ok, answer.text
        return str(answer.text)

    def done(self, method: str, url: str, body: Any = None, of: str = LOCATION) -> None:
        """A change, and the end of its operation."""
        name = self.answer(method, url, body)["name"]

        def ended() -> Any:
            operation = self.answer("GET", f"{of}/operations/{name}")
            return operation if operation["status"] == "DONE" else None

        item = until(ended, url, 120)
        assert "error" not in item, item

    def grant(self, role: str, member: str) -> None:
        """On the project; it takes a while to hold."""
        policy = self.answer("POST", f"{RESOURCES}:getIamPolicy", {})
        policy["bindings"].append({"role": role, "members": [member]})
        self.answer("POST", f"{RESOURCES}:setIamPolicy", {"policy": policy})

    def use(self, endpoint: str) -> None:
        """Write a kubeconfig as the gke layer's."""
        execute = {
            "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "gke-gcloud-auth-plugin",
            "interactiveMode": "Never", "provideClusterInfo": True,
        }  # fmt: skip
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"https://{endpoint}"}}],
            "users": [{"name": "c", "user": {"exec": execute}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }))  # fmt: skip

    def kubectl(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GOOGLE_APPLICATION_CREDENTIALS": self.login}
        line = ["kubectl", "--kubeconfig", str(self.config), *words]
        return subprocess.run(
            line, env=environment, input=given, capture_output=True, text=True, check=False, timeout=60
        )

    def read(self, *words: str, given: str = "") -> list[str]:
        """The lines that kubectl prints."""
        done = self.kubectl(*words, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]


def until(result: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (answer := result()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)
    return answer


def begin(owner: Person) -> str:
    """A network and a cluster; the DNS endpoint."""
    owner.answer("POST", ENABLE, {"serviceIds": ["compute.googleapis.com", "container.googleapis.com"]})

    def answers() -> bool:
        try:
            return bool(owner.answer("GET", f"{LOCATION}/clusters") is not None)
        except AssertionError:
            return False

    until(answers, "GKE's API")
    owner.done("POST", f"{COMPUTE}/global/networks", {"name": "gke", "autoCreateSubnetworks": False},
               f"{COMPUTE}/global")  # fmt: skip
    subnet = {
        "name": "gke", "network": f"projects/{PROJECT}/global/networks/gke", "ipCidrRange": "10.129.0.0/20",
        "secondaryIpRanges": [{"rangeName": "pods", "ipCidrRange": "192.168.64.0/20"},
                              {"rangeName": "services", "ipCidrRange": "192.168.80.0/22"}],
    }  # fmt: skip
    owner.done("POST", f"{COMPUTE}/regions/{REGION}/subnetworks", subnet, f"{COMPUTE}/regions/{REGION}")
    owner.done("POST", f"{LOCATION}/clusters", {"cluster": CLUSTER})
    cluster = owner.answer("GET", f"{LOCATION}/clusters/tpu")
    assert cluster["status"] == "RUNNING"
    return str(cluster["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["endpoint"])


def nodes(person: Person) -> list[str]:
    return person.read("get", "nodes", "--no-headers", "-o", "custom-columns=N:.metadata.name")


def main(folder: Path) -> None:
    """Print the facts that test_clusters.py compares, as JSON."""
    owner, engineer = Person("owner", folder), Person("ml-engineer", folder)
    endpoint = begin(owner)
    for person in (owner, engineer):
        person.use(endpoint)
    requests_before = logged()
    facts: dict[str, Any] = {"first": until(lambda: nodes(owner), "the first node")}
    facts["whoami"] = owner.read("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}{'\\n'}")
    facts["stranger"] = engineer.kubectl("get", "pods").stderr
    owner.grant("roles/container.developer", "user:ml-engineer@example.com")
    until(lambda: engineer.kubectl("get", "pods").returncode == 0, "the grant")
    bind = (
        "create",
        "clusterrolebinding",
        "mine",
        "--clusterrole=cluster-admin",
        "--user=ml-engineer@example.com",
    )
    facts["developer"] = engineer.kubectl(*bind).stderr
    owner.read(*bind)
    facts["bound"] = engineer.read("auth", "can-i", "create", "clusterroles")
    facts["logged"] = [item for item in logged()[len(requests_before) :] if "googleapis" not in item]
    owner.done("POST", f"{LOCATION}/clusters/tpu/nodePools", {"nodePool": SLICE})
    facts["slice"] = until(lambda: len(names := nodes(owner)) == 5 and names, "the slice's nodes")
    facts |= pods_in_the_world(owner) | a_slice_that_scales(owner)
    facts["second"] = refusal(owner, {"cluster": CLUSTER | {"name": "other"}})
    owner.done("DELETE", f"{LOCATION}/clusters/tpu/nodePools/v6e")
    until(lambda: nodes(owner) == facts["first"], "the slice's end")
    print(json.dumps(facts))


def pod(name: str, line: str, namespace: str = "default") -> dict[str, Any]:
    """A pod with a bucket at /data."""
    source = {
        "driver": "gcsfuse.csi.storage.gke.io",
        "volumeAttributes": {"bucketName": BUCKET, "mountOptions": "implicit-dirs,metadata-cache:ttl-secs:0"},
    }
    container = {"name": "c", "image": "debian:12", "command": ["bash", "-c", line],
                 "volumeMounts": [{"name": "data", "mountPath": "/data"}]}  # fmt: skip
    meta = {"name": name, "namespace": namespace, "annotations": {"gke-gcsfuse/volumes": "true"}}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [{"name": "data", "csi": source}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def pods_in_the_world(owner: Person) -> dict[str, Any]:
    """A pod whose account was granted a bucket, and one of another account; accounts come by an update."""
    owner.done("PUT", f"{LOCATION}/clusters/tpu", {"update": IDENTITY})
    uniform = {"uniformBucketLevelAccess": {"enabled": True}}
    bucket = {"name": BUCKET, "location": REGION, "iamConfiguration": uniform}
    owner.answer("POST", f"{STORAGE}?project={PROJECT}", bucket)
    number = owner.answer("GET", RESOURCES)["projectNumber"]
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{PROJECT}.svc.id.goog"
    member = f"principal://iam.googleapis.com/{pool}/subject/ns/default/sa/default"
    policy = owner.answer("GET", f"{STORAGE}/{BUCKET}/iam")
    policy["bindings"].append({"role": "roles/storage.objectUser", "members": [member]})
    owner.answer("PUT", f"{STORAGE}/{BUCKET}/iam", policy)
    time.sleep(3)  # the grant's way
    account = "http://metadata/computeMetadata/v1/instance/service-accounts/default"
    who = f"curl -sSf -H 'Metadata-Flavor: Google' {account}"
    owner.read("create", "namespace", "other")
    owner.read("apply", "-f", "-", given=json.dumps(pod("writer", f"{who}/email > /data/email")))
    until(lambda: phase(owner, "writer") == "Succeeded", "the pod that writes")
    owner.read("apply", "-f", "-", given=json.dumps(pod("stranger", "true", "other")))

    def why() -> str:
        (result,) = owner.read(
            "get", "pod", "stranger", "-n", "other", "-o", "jsonpath={.status.message}{'\\n'}"
        )
        return result

    refused = until(why, "the refusal of the mount")
    owner.read("delete", "namespace", "other")
    content = owner.text(f"{STORAGE}/{BUCKET}/o/email?alt=media")
    return {"written": content, "refused": refused}


def a_slice_that_scales(owner: Person) -> dict[str, Any]:
    """A pool of no nodes, a pod for it, a stock-out, and all nodes of the slice."""
    control = Control(Path(os.environ["REHEARSAL_CONTROL"]))
    empty = control.add_fault({
        "match": {"method": "container.autoscaler.scaleUp"}, "times": 1,
        "what": {"operation_error": {"code": "RESOURCE_EXHAUSTED", "message": "GCE out of resources"}},
    })  # fmt: skip
    scaling = {"enabled": True, "minNodeCount": 0, "maxNodeCount": 4}
    place = {"name": "flex", "initialNodeCount": 0, "autoscaling": scaling}
    affinity = {"consumeReservationType": "NO_RESERVATION"}
    config = {"machineType": "ct6e-standard-4t", "flexStart": True, "reservationAffinity": affinity}
    owner.done("POST", f"{LOCATION}/clusters/tpu/nodePools", {"nodePool": SLICE | place | {"config": config}})
    before = nodes(owner)
    item = pod("chips", "sleep 1000")
    item["spec"] |= {
        "nodeSelector": {"cloud.google.com/gke-nodepool": "flex"},
        "terminationGracePeriodSeconds": 0,
    }
    item["spec"]["tolerations"] = [{"key": "google.com/tpu", "operator": "Exists"}]
    item["spec"]["containers"][0]["resources"] = {"limits": {"google.com/tpu": 4}}
    owner.read("apply", "-f", "-", given=json.dumps(item))
    until(lambda: phase(owner, "chips") == "Running", "the pod for chips")
    reasons = owner.read(
        "get", "events", "--no-headers", "-o", "custom-columns=R:.reason,N:.involvedObject.name"
    )
    mapping: dict[str, Any] = {"reasons": [line.split()[0] for line in reasons if line.split()[1] == "chips"],
             "scaled": len(nodes(owner)) - len(before),
             "observed": [rule["observed"] for rule in control.faults() if rule["id"] == empty]}  # fmt: skip
    nothing: Any = None
    scene = Scene(nothing, Path(), nothing, control, nothing, nothing, print)
    disturbing.lose("flex", "power-loss", for_s=100).act(scene)
    mapping["lost"] = scene.note.text
    until(lambda: len(nodes(owner)) == len(before) + 4, "the slice again")
    owner.kubectl("delete", "pod", "chips", "--force")
    control.set_clock(200)
    until(lambda: nodes(owner) == before, "the end of an idle slice")
    return mapping


def phase(person: Person, name: str) -> str:
    (result,) = person.read("get", "pod", name, "-o", "jsonpath={.status.phase}{'\\n'}")
    return result


def refusal(person: Person, body: Any) -> str:
    try:
        person.answer("POST", f"{LOCATION}/clusters", body)
    except AssertionError as refused:
        return str(refused)
    return ""


def logged() -> list[str]:
    """Hosts of the requests that the cloud counts."""
    return [
        request["host"] for request in Control(Path(os.environ["REHEARSAL_CONTROL"])).requests()["requests"]
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
