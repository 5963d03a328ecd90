"""An image of a published bundle: its Dockerfile's RUN in a bare Debian, then a job in what that made.

No Docker runs here: the instructions are carried out as the Dockerfile has them, RUN by a shell in a root of
its own without a network, and the pod gets that root.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from cli.publish import publish
from infra.layers.queue import namespace
from infra.layers.queue.jobs.jobset import jobset
from infra.layers.queue.jobs.submission import JobRequest, submission
from infra.layers.queue.kueue import Team, objects
from infra.layers.queue.namespace import Volumes
from infra.publish import image
from infra.publish.cache import cache_dir
from rehearsal.hosts.image import ensure_image
from rehearsal.kubernetes.node import docker
from tests.cli.call import call
from tests.infra.layers.queue.test_submission import IMAGE, settings
from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front
from tests.rehearsal.kubernetes.lab import JOBSET, Lab, output, pool

pytestmark = pytest.mark.slow
TEAM = Team("vision", "vision")
BUILT = f"us-east5-docker.pkg.dev/my-project/images/workload@sha256:{'1' * 64}"
SMALL = {"acceleratorType": "v6e-4", "topology": "2x2", "hosts": 1, "chips": 4}


@pytest.fixture(scope="module", name="context")
def _context(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a bundle that was published to a bucket."""
    place = tmp_path_factory.mktemp("image")
    front = Front(place / "cloud")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", front.url)
        client = storage.Client(project=PROJECT, credentials=AnonymousCredentials())
        bucket = client.create_bucket("image-checkpoints")
        assert call(publish, ["x", "--lock", "cpu", "--bucket", bucket.name]) == 0
        (manifest,) = bucket.list_blobs(prefix="bundles/manifests/")

        def read(name: str) -> bytes:
            return bytes(bucket.blob(name).download_as_bytes())

        bundle = manifest.name.rpartition("/")[2]
        image.write(place / "context", bundle, read, IMAGE, BUILT.partition("@")[0])
    front.close()
    return place / "context"


def test_a_job_trains_in_an_image_of_the_bundle(
    lab: Lab, context: Path, shared: Path, tmp_path: Path
) -> None:
    debian = ensure_image(cache_dir())
    name = f"{BUILT.partition('@')[0]}@sha256:{docker.build(context, debian, tmp_path / 'images')}"
    built = docker.find_built(tmp_path / "images", name, debian)
    assert built is not None
    (layer,) = built.layers
    assert not list(layer.glob("opt/tpu/bundles/*/*")), "the bundle stays out of the image"
    assert docker.build(context, debian, tmp_path / "images") == name.rpartition(":")[2], "once"
    lab.agent._images = {BUILT: built, **lab.agent._images}
    lab.add_pool({**pool("small-0"), "placementPolicy": {}}, 1)
    lab.api.apply_all(list(objects([output("small-0", **SMALL)])), "tests")
    space, *rest = namespace.objects(TEAM, [], "trainer", None, Volumes("bucket"))
    del space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]  # its pods see this machine
    lab.api.apply_all([space, *rest], "tests")
    configured = settings(**{
        "queue:image": BUILT, "queue:install": "image", "data:snapshot": None,
        "gke:tpuPools": [{"name": "small", "acceleratorType": "v6e-4", "zone": "us-east5-b", "spot": True}],
    })  # fmt: skip
    program = ["train", "tiny.toml", "--dir", str(shared / "results"), "--set", "train.steps=12"]
    manifest = jobset(submission(configured, JobRequest("vision", program, name="built")).job)
    pod: dict[str, Any] = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    worker = pod["containers"][0]
    assert worker["image"] == BUILT
    assert worker["command"][:4] == ["workload", "launch", "--", "workload"]
    # The claims need CSI drivers, which the lab hasn't; a folder of this machine is the storage.
    pod["volumes"] = [{"name": "shared", "hostPath": {"path": str(shared)}}]
    worker["volumeMounts"] = [{"name": "shared", "mountPath": str(shared)}]
    worker["env"] += [{"name": "DATA_DIR", "value": str(shared / "tokens")},
                      {"name": "JAX_PLATFORMS", "value": "cpu"}]  # fmt: skip
    lab.api.create(manifest)

    def printed() -> str:
        pods = lab.api.list("v1", "Pod", "vision", labelSelector="jobset.sigs.k8s.io/jobset-name=built")
        return "\n".join(lab.agent.log("vision", entry["metadata"]["name"], "worker") for entry in pods)

    def ended() -> str:
        answer = lab.api.get(*JOBSET, "built", "vision")
        assert answer is not None
        return str(answer.get("status", {}).get("terminalState", ""))

    lab.until(ended, "the job's end")
    assert ended() == "Completed", printed()
    assert "WORKER_COUNT=1" in printed(), "the launcher's"
    final = json.loads((shared / "results" / "runs" / "tiny" / "final.json").read_text())
    assert final
    assert os.listdir(shared / "results" / "runs" / "tiny" / "tensorboard")
