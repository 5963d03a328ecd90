"""Kueue is upgraded under a job that runs and jobs that wait: nothing is lost, and the pods stay.

Objects are stored in both of its versions. The release before stores v1beta2 alone. A cluster from earlier
has v1beta1, too: here by the same manifests, but with v1beta1 as the version that is stored.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import yaml

from infra.layers.queue import namespace
from infra.layers.queue.jobs.jobset import Job, jobset
from infra.layers.queue.kueue import Team, objects
from infra.layers.queue.namespace import Volumes
from infra.layers.queue.versions import KUEUE
from infra.settings.sources import ROOT
from rehearsal.kubernetes.errors import ApiServerError, KubernetesError
from rehearsal.kubernetes.node.sandbox import Image
from rehearsal.kubernetes.plane.api import Api, Object, documents
from rehearsal.kubernetes.plane.programs import QUEUE, QUEUE_PREVIOUS, folder
from tests.limits import HANG_S
from tests.rehearsal.kubernetes.lab import HOSTS, MACHINE, WORKLOAD, Lab, inside, output, pool
from tests.rehearsal.kubernetes.stack import Stack, made
from tests.rehearsal.kubernetes.test_jobs import WAIT

pytestmark = pytest.mark.prove
INSIDE: ThreadPoolExecutor = inside()
PREVIOUS = "v0.18.4"  # of tools/queue-previous/go.mod
OLD, NEW = "v1beta1", "v1beta2"
KINDS = ("ClusterQueue", "LocalQueue", "ResourceFlavor", "Topology", "WorkloadPriorityClass", "Workload")
EARLY, LATE = Team("early", "early"), Team("late", "late")
PROGRAM = """
import json, sys
from pathlib import Path
import pulumi, pulumi_kubernetes as kubernetes
desired = json.loads(Path("objects.json").read_text())
sys.path.insert(0, desired["root"])
from infra.layers.queue import manifests
from infra.layers.queue.program import Controller
manifests.files = lambda: {path.name: path.read_bytes() for path in Path(desired["folder"]).glob("*.yaml")}
if desired["previous"]:
    manifests._WAIT = ""
provider = kubernetes.Provider("cluster", **json.loads(Path("settings.json").read_text()))
Controller("kueue", desired["image"], pulumi.ResourceOptions(provider=provider))
"""


@pytest.fixture(name="cluster")
def _cluster(programs: None, tmp_path: Path) -> Iterator[Lab]:
    try:
        previous = {f"*/kueue/kueue:{PREVIOUS}*": Image({"/manager": folder(QUEUE_PREVIOUS) / "kueue"})}
    except KubernetesError as error:
        pytest.skip(str(error))
    files = ("provisioningrequests", "jobset")
    lab = INSIDE.submit(Lab, tmp_path / "cluster", files, previous).result()
    yield lab
    INSIDE.submit(lab.close).result()


@pytest.fixture(name="stack")
def _stack(cluster: Lab, tmp_path: Path) -> Stack:
    return made(tmp_path, cluster.control_plane.kubeconfig)


def storing(version: str, source: Path, place: Path) -> Path:
    """A folder with Kueue's manifests, whose kinds are stored in this version where they have it."""
    listed = documents((source / "kueue.yaml").read_text())
    for resource in listed:
        if resource["kind"] == "CustomResourceDefinition":
            versions = resource["spec"]["versions"]
            if version in [entry["name"] for entry in versions]:
                for entry in versions:
                    entry["storage"] = entry["name"] == version
    place.mkdir()
    (place / "kueue.yaml").write_text(yaml.safe_dump_all(listed))
    return place


def install(stack: Stack, place: Path, version: str) -> float:
    """By the layer's own component and the real Pulumi CLI: how many seconds that took."""
    image = f"registry.k8s.io/kueue/kueue:{version}@sha256:{'0' * 64}"
    previous = "yes" if version == PREVIOUS else ""
    desired = {"root": str(ROOT), "folder": str(place), "image": image, "previous": previous}
    stack.write(desired, PROGRAM)  # type: ignore[arg-type]
    begun = time.monotonic()
    stack.up()
    return time.monotonic() - begun


def job(name: str, team: Team) -> Job:
    return Job(name, team, MACHINE, WAIT, topology="4x4", hosts=HOSTS, chips_per_host=4)


def running(lab: Lab, work: Job) -> set[str]:
    """Return the uids of its pods, once all of them run."""
    uids = {pod["metadata"]["uid"] for pod in lab.pods(work, "Running")}
    return uids if len(uids) == HOSTS else set()


def stored() -> dict[str, str]:
    """In which version etcd itself has each of Kueue's objects."""

    def encoded(key: str) -> str:
        return base64.b64encode(key.encode()).decode()

    body = {"key": encoded("/registry/kueue.x-k8s.io/"), "range_end": encoded("/registry/kueue.x-k8s.io0")}
    answer = requests.post("http://127.0.0.1:2379/v3/kv/range", json=body, timeout=HANG_S).json()
    listed = [json.loads(base64.b64decode(entry["value"])) for entry in answer["kvs"]]
    return {
        "/".join(
            filter(
                None, (resource["kind"], resource["metadata"].get("namespace"), resource["metadata"]["name"])
            )
        ): resource["apiVersion"].rpartition("/")[2]
        for resource in listed
    }


def workload(api: Api, resource: Job) -> str:
    """Its workload, as `stored` names it."""
    (listed,) = [
        f"Workload/{resource.team.namespace}/{entry['metadata']['name']}"
        for entry in api.list(*WORKLOAD, resource.team.namespace)
        if entry["metadata"]["ownerReferences"][0]["name"] == resource.name
    ]
    return listed


def readable(api: Api, version: str) -> dict[str, Object]:
    """Specs of all objects by their uids."""
    return {
        resource["metadata"]["uid"]: resource.get("spec") or resource.get("value")
        for kind in KINDS
        for resource in api.list(f"kueue.x-k8s.io/{version}", kind)
    }


def assert_v1beta1_is_needed(api: Api) -> None:
    """A release without it would be refused."""
    flavors = next(
        resource
        for resource in documents((folder(QUEUE) / "kueue.yaml").read_text())
        if resource["metadata"]["name"] == "resourceflavors.kueue.x-k8s.io"
    )
    flavors["spec"]["versions"] = [
        resource for resource in flavors["spec"]["versions"] if resource["name"] != OLD
    ]
    with pytest.raises(ApiServerError, match="storedVersions"):
        api.apply(flavors, "tests", dry=True)


def rewrite(api: Api) -> None:
    """Store every object anew: `kubectl get -o yaml KIND -A | kubectl replace -f -`."""
    for kind in KINDS:
        for resource in api.list(f"kueue.x-k8s.io/{NEW}", kind):
            api.request("PUT", api.path(resource), resource)


class Prober(threading.Thread):
    """Creates a job in a dry run, again and again."""

    def __init__(self, api: Api, manifest: Object) -> None:
        super().__init__(daemon=True)
        self._api, self._manifest, self._over = api, manifest, threading.Event()
        self.attempts, self.refused_s, self.messages = 0, 0.0, set[str]()

    def run(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            try:
                self._api.create(self._manifest, dryRun="All")
                self._over.wait(0.2)
            except ApiServerError as error:
                self.messages.add(str(error)[:300])
                self._over.wait(0.2)
                self.refused_s += time.monotonic() - begun
            self.attempts += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


def create(lab: Lab, *jobs: Job) -> None:
    for work in jobs:
        manifest = jobset(work)
        lab.until(
            lambda manifest=manifest: tried(lambda: lab.api.create(manifest)),  # type: ignore[misc]
            f"{work.name} accepted",
        )


def tried(change: Callable[[], object]) -> bool:
    """Return False where a webhook that starts refused the change."""
    try:
        change()
    except ApiServerError as error:
        if "webhook" not in str(error):
            raise
        return False
    return True


def apply(lab: Lab, made: Sequence[Object]) -> None:
    lab.until(lambda: tried(lambda: lab.api.apply_all(made, "tests")), "the queue's objects")


def space(team: Team) -> list[Object]:
    return list(namespace.objects(team, [], "trainer", None, Volumes("bucket")))


def test_a_newer_kueue_takes_over_what_an_older_one_left(cluster: Lab, stack: Stack, tmp_path: Path) -> None:
    lab, api = cluster, cluster.api
    lab.add_pool(pool("train-0"))
    runs, waits, waits_too = job("runs", EARLY), job("waits", EARLY), job("waits-too", LATE)

    # As it was before v1beta2 was what is stored.
    previous = folder(QUEUE_PREVIOUS)
    install(stack, storing(OLD, previous, tmp_path / "older"), PREVIOUS)
    apply(lab, [*objects([output("train-0")]), *space(EARLY)])
    create(lab, runs)
    before = lab.until(lambda: running(lab, runs), "the job")
    create(lab, waits)
    lab.until(lambda: len(api.list(*WORKLOAD)) == 2, "two workloads")

    # The release as it is.
    install(stack, previous, PREVIOUS)
    apply(lab, space(LATE))
    create(lab, waits_too)
    lab.until(lambda: len(api.list(*WORKLOAD)) == 3, "three workloads")
    lab.until(lambda: stored().get(workload(api, waits_too)) == NEW, "its workload")
    versions = stored()
    print("stored before:", versions)
    flavor = next(name for name in versions if name.startswith("ResourceFlavor/v6e"))
    assert {versions[name] for name in (flavor, workload(api, runs), workload(api, waits))} == {OLD}
    assert {versions[name] for name in ("LocalQueue/late/default", workload(api, waits_too))} == {NEW}
    specs = readable(api, NEW)

    prober = Prober(lab.control_plane.client(lab.control_plane.admin), jobset(job("probe", EARLY)))
    prober.start()
    seconds = install(stack, folder(QUEUE), KUEUE)
    prober.stop()
    print(f"upgraded in {seconds:.1f} s; of {prober.attempts} dry runs refused for {prober.refused_s:.1f} s")
    assert prober.refused_s < 30, prober.messages

    assert running(lab, runs) == before, "the same pods"
    (controller,) = api.list("v1", "Pod", "kueue-system")
    assert f":{KUEUE}@" in controller["spec"]["containers"][0]["image"]
    log = lab.agent.log("kueue-system", controller["metadata"]["name"], "manager")
    assert "timeout: 8760h0m0s" in log, "else jobs that wait for nodes are evicted after 30 minutes"
    assert readable(api, NEW) == specs
    assert readable(api, OLD).keys() == specs.keys()
    lab.remove(runs)
    lab.until(lambda: running(lab, waits), "the job that waited")
    assert not running(lab, waits_too)
    lab.remove(waits)
    lab.until(lambda: running(lab, waits_too), "the last job")
    assert_v1beta1_is_needed(api)
    rewrite(api)
    assert {*stored().values()} == {NEW}
