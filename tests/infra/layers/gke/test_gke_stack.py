"""The GKE layer on an emulated Google Cloud, by the real CLI: up, unchanged, without slices, and gone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.lab import OWNER, PROJECT, SETTINGS, Lab

PLACE = f"projects/{PROJECT}/locations/us-east5/clusters/tpu"
POOLS = f"""\
  gke:nodeAccountUsers: ["user:{OWNER}"]
  gke:tpuPools:
    - {{name: train, acceleratorType: v6e-16, zone: us-east5-b, spot: true, count: %d}}
    - {{name: flex, acceleratorType: v6e-32, zone: us-east5-b, flexStart: true}}
    - {{name: small, acceleratorType: v6e-8, zone: us-east5-b, autoscaling: true}}
"""
NODES = f"tpu-gke-nodes@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    write(lab, 2)
    for layer in ("storage", "network", "gke"):
        lab.infra("up", "dev", layer, "--yes", "--skip-preview")
    yield lab
    lab.close()


def write(lab: Lab, slices: int, *lines: str) -> None:
    lab.settings.write_text(SETTINGS + POOLS % slices + "".join(f"  {line}\n" for line in lines))


def pools(lab: Lab) -> dict[str, int]:
    """Node pool → nodes, as the instance groups have them."""
    directory = lab.cloud.world.directory
    sizes = {name.rpartition("/")[2]: body["targetSize"] for name, body in directory.items()
             if "/instanceGroupManagers/" in name}  # fmt: skip
    declared = {name: body for name, body in directory.items() if name.startswith(f"{PLACE}/nodePools/")}
    return {
        name.rpartition("/")[2]: sum(sizes[url.rpartition("/")[2]] for url in body["instanceGroupUrls"])
        for name, body in declared.items()
    }


def changes(lab: Lab) -> str:
    return lab.pulumi("gke", "up", "-s", "dev", "--yes", "--skip-preview")


@pytest.mark.prove
@pytest.mark.slow
def test_a_cluster_from_nothing_to_nothing(lab: Lab) -> None:
    cluster = lab.cloud.world.directory[PLACE]
    assert pools(lab) == {"cpu": 3, "train-0": 4, "train-1": 4, "flex-0": 0, "small-0": 0}
    assert cluster["currentMasterVersion"] == "1.35.7-gke.1222000"
    assert cluster["controlPlaneEndpointsConfig"]["ipEndpointsConfig"]["enabled"] is False
    assert "endpoint" not in cluster
    assert cluster["ipAllocationPolicy"]["clusterIpv4CidrBlock"] == "192.168.64.0/20"
    outputs = json.loads(lab.pulumi("gke", "stack", "output", "--json", "-s", "dev"))
    assert outputs["endpoint"] == cluster["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["endpoint"]
    assert outputs["endpoint"].endswith(".us-east5.gke.goog")
    assert json.loads(outputs["kubeconfig"])["clusters"][0]["cluster"]["server"].endswith(outputs["endpoint"])
    flex = lab.cloud.world.directory[f"{PLACE}/nodePools/flex-0"]
    assert flex["config"]["flexStart"] is True
    assert flex["autoscaling"]["maxNodeCount"] == 8

    # Nothing to change: now, after Google was asked, and after the channel raised the version.
    lab.pulumi("gke", "preview", "--expect-no-changes", "-s", "dev")
    cluster["currentMasterVersion"] = "1.36.4-gke.1082000"
    lab.pulumi("gke", "refresh", "--yes", "--skip-preview", "-s", "dev")
    lab.pulumi("gke", "preview", "--expect-no-changes", "-s", "dev")

    # Jobs have come: the autoscaler has added nodes, which no update takes away.
    for name, body in lab.cloud.world.directory.items():
        if "/instanceGroupManagers/gke-tpu-flex-0" in name:
            body["targetSize"] = 8
    lab.pulumi("gke", "refresh", "--yes", "--skip-preview", "-s", "dev")
    lab.pulumi("gke", "preview", "--expect-no-changes", "-s", "dev")
    assert pools(lab)["flex-0"] == 8

    write(lab, 0)
    changes(lab)
    assert pools(lab) == {"cpu": 3, "flex-0": 8, "small-0": 0}
    assert lab.cloud.world.directory[PLACE]["status"] == "RUNNING"
    write(lab, 1)
    changes(lab)
    assert pools(lab)["train-0"] == 4

    write(lab, 1, "gke:deletionProtection: true")
    changes(lab)
    output = lab.pulumi("gke", "destroy", "-s", "dev", "--yes", "--skip-preview", fine=False)
    assert "deletionProtection" in output or "deletion_protection" in output
    assert PLACE in lab.cloud.world.directory
    write(lab, 1)
    changes(lab)
    lab.pulumi("gke", "destroy", "-s", "dev", "--yes", "--skip-preview")
    left = [name for name in lab.cloud.world.directory if "/clusters/" in name or "instanceGroup" in name]
    assert not left
    account = f"projects/{PROJECT}/serviceAccounts/{NODES}"
    assert account not in lab.cloud.world.directory


@pytest.mark.prove
@pytest.mark.slow
def test_a_pools_new_size_is_a_new_pool_once_no_job_runs_there(lab: Lab) -> None:
    """In place, as the provider's schema has it, GKE would refuse it."""
    node = {"metadata": {"name": "gke-node"}}
    owner = {"kind": "Job", "name": "vision-workers-0"}
    job = {"metadata": {"namespace": "tpu-training", "name": "a", "ownerReferences": [owner]},
           "spec": {"nodeName": "gke-node"}}  # fmt: skip
    lab.kubernetes = {"/api/v1/nodes": [node], "/api/v1/pods": [job]}
    text = lab.settings.read_text()
    lab.settings.write_text(text.replace("v6e-16", "v6e-32"))
    output = lab.pulumi("gke", "up", "-s", "dev", "--yes", "--skip-preview", fine=False)
    assert "in use by 1 job: tpu-training/vision-workers-0" in output
    assert "fix: tpu job cancel dev TEAM JOB" in output
    assert pools(lab)["train-0"] == 4
    lab.kubernetes = {}
    changes(lab)
    assert pools(lab)["train-0"] == 8
    lab.pulumi("gke", "preview", "--expect-no-changes", "-s", "dev")
    # A pool that begins to scale, and ends it, stays; so do its labels, and the CPU nodes.
    made = lab.cloud.world.directory[f"{PLACE}/nodePools/train-0"]
    for change in (
        ("spot: true, count: 2", "spot: true, count: 2, autoscaling: true"),
        ("spot: true, count: 2", "spot: true, count: 2, labels: {team: vision}"),
        (
            "gke:tpuPools",
            'gke:cpuPoolMachineType: n2-standard-8\n  gke:description: "Another"\n  gke:tpuPools',
        ),
    ):
        lab.settings.write_text(text.replace("v6e-16", "v6e-32").replace(*change))
        assert "replaced" not in changes(lab)
        lab.pulumi("gke", "preview", "--expect-no-changes", "-s", "dev")
    assert lab.cloud.world.directory[f"{PLACE}/nodePools/train-0"].get("selfLink") == made["selfLink"]
    assert lab.cloud.world.directory[f"{PLACE}/nodePools/cpu"]["config"]["machineType"] == "n2-standard-8"
