"""An image of a published bundle: its Dockerfile's RUN in a bare Debian, then a job in what that made.

No Docker runs here: the instructions are carried out as the Dockerfile has them, RUN by a shell in a root of
its own without a network, and the pod gets that root.
"""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from infra.jobs import image
from infra.jobs.jobset import jobset
from infra.jobs.submission import Request, submission
from infra.publish.__main__ import main as publish
from infra.publish.wheels import cache_dir
from infra.queue import namespace
from infra.queue.kueue import Team, objects
from infra.queue.namespace import Volumes
from infra.settings.sources import ROOT
from rehearsal.hosts.image import ensure_image
from rehearsal.kubernetes.sandbox import Image
from tests.cloud.storage.storage_front import PROJECT, Front
from tests.infra.test_submission import IMAGE, settings
from tests.kubernetes.lab import JOBSET, Lab, output, pool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TEAM = Team("vision", "vision")
BUILT = f"us-east5-docker.pkg.dev/my-project/images/workload@sha256:{'1' * 64}"
SMALL = {"acceleratorType": "v6e-4", "topology": "2x2", "hosts": 1, "chips": 4}


@dataclass(frozen=True)
class Dockerfile:
    """The instructions that ours has."""

    base: str
    mounts: dict[str, str]
    run: str
    environment: dict[str, str]

    @staticmethod
    def read(path: Path) -> "Dockerfile":
        lines = [line.partition(" ")[::2] for line in path.read_text().splitlines()]
        assert [key for key, _ in lines] == ["FROM", "LABEL", "RUN", "ENV", "WORKDIR", "ENTRYPOINT"]
        found = dict(lines)
        flag, _, run = found["RUN"].partition(" ")
        bind = dict(part.split("=", 1) for part in flag.removeprefix("--mount=").split(","))
        assert bind.pop("type") == "bind"
        variable, _, value = found["ENV"].partition("=")
        return Dockerfile(found["FROM"], {bind["source"]: bind["target"]}, run, {variable: value})


@pytest.fixture(scope="module", name="context")
def _context(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a bundle that was published to a bucket."""
    place = tmp_path_factory.mktemp("image")
    front = Front(place / "cloud")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", front.url)
        client = storage.Client(project=PROJECT, credentials=AnonymousCredentials())
        bucket = client.create_bucket("image-checkpoints")
        assert publish(["x", "--lock", "cpu", "--bucket", bucket.name]) == 0
        (manifest,) = bucket.list_blobs(prefix="bundles/manifests/")

        def read(name: str) -> bytes:
            return bytes(bucket.blob(name).download_as_bytes())

        bundle = manifest.name.rpartition("/")[2]
        image.write(place / "context", bundle, read, IMAGE, BUILT.partition("@")[0])
    front.close()
    return place / "context"


def build(context: Path, place: Path) -> Image:
    """Carry out a Dockerfile over a bare Debian, in this thread's mount namespace."""
    dockerfile = Dockerfile.read(context / image.DOCKERFILE)
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    parts = {name: place / name for name in ("upper", "work", "merged")}
    for part in parts.values():
        part.mkdir()
    layers = f"lowerdir={ensure_image(cache_dir())},upperdir={parts['upper']},workdir={parts['work']}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(parts["merged"])], check=True)
    root, binds = parts["merged"], []
    for source, target in dockerfile.mounts.items():
        (root / target.lstrip("/")).mkdir(parents=True)
        binds.append(f"mount --bind -o ro {context / source} {root}{target}")
    script = " && ".join([
        *binds, f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev",
        f"exec chroot {root} env -i PATH=/usr/bin:/bin /bin/sh -c {shlex.quote(dockerfile.run)}",
    ])  # fmt: skip
    line = ["unshare", "--net", "--mount", "--pid", "--fork", "bash", "-c", script]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for target in dockerfile.mounts.values():
        assert not os.listdir(root / target.lstrip("/")), "the bundle stays out of the image"
    return Image(root=root, environment=dockerfile.environment)


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared = tmp_path_factory.mktemp("shared")
    (shared / "text").mkdir()
    (shared / "text" / "a.txt").write_text("".join(f"{n} bottles of beer on the wall\n" for n in range(4000)))
    workload = str(Path(sys.executable).parent / "workload")
    command = [workload, "data", "prepare", "--source", str(shared / "text"), "--out", str(shared / "tokens")]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return shared


def test_a_job_trains_in_an_image_of_the_bundle(
    lab: Lab, context: Path, shared: Path, tmp_path: Path
) -> None:
    lab.agent._images = {BUILT: build(context, tmp_path / "root"), **lab.agent._images}
    lab.add_pool({**pool("small-0"), "placementPolicy": {}}, 1)
    lab.api.apply_all(list(objects([output("small-0", **SMALL)])), "tests")
    space, *rest = namespace.objects(TEAM, [], "trainer", None, Volumes("bucket", {}))
    del space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]  # its pods see this machine
    lab.api.apply_all([space, *rest], "tests")
    configured = settings(**{
        "queue:image": BUILT, "queue:install": "image", "data:snapshot": None,
        "gke:tpuPools": [{"name": "small", "acceleratorType": "v6e-4", "zone": "us-east5-b", "spot": True}],
    })  # fmt: skip
    program = ["train", "tiny.toml", "--dir", str(shared / "results"), "--set", "train.steps=12"]
    manifest = jobset(submission(configured, Request("vision", program, name="built")).job)
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
        return "\n".join(lab.agent.log("vision", one["metadata"]["name"], "worker") for one in pods)

    def ended() -> str:
        found = lab.api.get(*JOBSET, "built", "vision")
        assert found is not None
        return str(found.get("status", {}).get("terminalState", ""))

    lab.until(ended, "the job's end", 300)
    assert ended() == "Completed", printed()
    assert "WORKER_COUNT=1" in printed(), "the launcher's"
    final = json.loads((shared / "results" / "runs" / "tiny" / "final.json").read_text())
    assert final
    assert os.listdir(shared / "results" / "runs" / "tiny" / "tensorboard")
