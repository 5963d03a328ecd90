"""Kueue's objects: quotas never exceed the pools."""

import re
from typing import Any

import pytest

from infra.layers.queue import admission
from infra.layers.queue.jobs.jobset import Job, jobset
from infra.layers.queue.kueue import CPU_FLAVOR, TPU, Quota, Team, flavors, local_queue, objects

TEAMS = [Team("vision", "vision"), Team("speech", "team-speech", "speech")]


def pool(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "acceleratorType": "v6e-16", "topology": "4x4", "machineType": "ct6e-standard-4t",
        "hosts": 4, "chips": 16, "zone": "us-east5-b", "provisioning": "on demand", "scales": False,
        "provisioningLabel": more.get("provisioning", "on demand").replace(" ", "-"), **more,
    }  # fmt: skip


def of_kind(kind: str, *pools: dict[str, Any]) -> list[dict[str, Any]]:
    return [object_ for object_ in objects(pools) if object_["kind"] == kind]


def quotas(*pools: dict[str, Any]) -> dict[str, int]:
    (queue,) = of_kind("ClusterQueue", *pools)
    (group,) = queue["spec"]["resourceGroups"]
    return {
        flavor["name"]: int(next(item["nominalQuota"] for item in flavor["resources"] if item["name"] == TPU))
        for flavor in group["flavors"]
    }


def test_a_jobset_that_the_policy_cannot_be_evaluated_for_is_refused() -> None:
    policy, binding = admission.objects([pool("a-0")], TEAMS, "projects/p/locations/l/clusters/c")
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_quota_is_what_the_pools_have() -> None:
    assert quotas(pool("a-0"), pool("a-1"), pool("b-0", provisioning="spot")) == {
        CPU_FLAVOR: 0,
        "v6e-4x4-4t-on-demand-us-east5-b": 32,
        "v6e-4x4-4t-spot-us-east5-b": 16,
    }
    assert quotas() == {CPU_FLAVOR: 0}


def test_quota_is_written_as_kueue_writes_it_back() -> None:
    """Or each preview would find a difference."""

    def amounts(**more: int) -> dict[str, str]:
        (queue,) = of_kind("ClusterQueue", pool("a-0", **more))
        result = queue["spec"]["resourceGroups"][0]["flavors"][1]["resources"]
        return {item["name"]: item["nominalQuota"] for item in result}

    assert amounts(chips=2000, hosts=500) == {TPU: "2k", "cpu": "89500", "memory": "340000Gi"}
    assert amounts(chips=4096, hosts=1024) == {TPU: "4096", "cpu": "183296", "memory": "680Ti"}


@pytest.mark.parametrize(("machine", "chips", "cpu", "memory"), [
    ("ct6e-standard-1t", 1, "43", "160Gi"), ("ct6e-standard-4t", 4, "179", "680Gi"),
    ("ct6e-standard-8t", 8, "179", "1380Gi"),
])  # fmt: skip
def test_a_nodes_cpus_and_memory_are_less_than_its_machine_has(
    machine: str, chips: int, cpu: str, memory: str
) -> None:
    host = pool("a-0", machineType=machine, chips=chips, hosts=1)
    (queue,) = of_kind("ClusterQueue", host)
    (group,) = queue["spec"]["resourceGroups"]
    result = {flavor["name"]: flavor["nominalQuota"] for flavor in group["flavors"][1]["resources"]}
    assert result == {TPU: str(chips), "cpu": cpu, "memory": memory}
    assert group["coveredResources"] == [TPU, "cpu", "memory"]
    # What copies curves waits for a CPU node by itself: it is not rationed.
    assert [flavor["nominalQuota"] for flavor in group["flavors"][0]["resources"]] == [
        "0",
        "100k",
        "400000Gi",
    ]


def test_pools_that_are_alike_share_a_flavor() -> None:
    known = flavors([pool("a-0"), pool("a-1"), pool("c-0", topology="4x8", chips=32, hosts=8)])
    assert [[item["name"] for item in same] for same in known.values()] == [["a-0", "a-1"], ["c-0"]]


@pytest.mark.parametrize(("scales", "placed"), [(False, "node-pools"), (True, None)])
def test_only_nodes_that_are_there_are_placed_by_topology(scales: bool, placed: str | None) -> None:
    item = of_kind("ResourceFlavor", pool("a-0", scales=scales, provisioning="flex-start"))[1]
    assert item["spec"].get("topologyName") == placed
    assert item["spec"]["nodeLabels"]["cloud.google.com/gke-flex-start"] == "true"


def test_flavors_of_one_topology_differ_in_the_value_of_a_label_that_all_have() -> None:
    """Kueue compares a job's node selector only with the labels that a flavor has."""
    ways = ("on demand", "spot", "flex-start", "queued", "reservation")
    autoscaled = pool("c-0", provisioning="spot", provisioningLabel="spot-autoscaled", scales=True)
    known = flavors([*(pool(f"p{i}-0", provisioning=how) for i, how in enumerate(ways)), autoscaled])
    assert len({item.labels["tpu-provisioning"] for item in known}) == len(ways) + 1
    assert len({item.name for item in known}) == len(ways) + 1


def test_a_flavor_finds_its_nodes_and_bears_their_taints() -> None:
    spot, queued = (
        item["spec"]
        for item in of_kind(
            "ResourceFlavor", pool("a-0", provisioning="spot"), pool("b-0", provisioning="queued")
        )
        if item["metadata"]["name"] != CPU_FLAVOR
    )
    chips = {"key": TPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    kind = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4",
        "node.kubernetes.io/instance-type": "ct6e-standard-4t", "topology.kubernetes.io/zone": "us-east5-b",
    }  # fmt: skip
    assert spot["nodeLabels"] == {**kind, "tpu-provisioning": "spot", "cloud.google.com/gke-spot": "true"}
    assert spot["tolerations"] == [chips]
    mark = "cloud.google.com/gke-queued"
    assert queued["nodeLabels"] == {**kind, "tpu-provisioning": "queued", mark: "true"}
    assert queued["tolerations"] == [chips, {**chips, "key": mark, "value": "true"}]


def test_priorities_have_values_and_preempt_within_the_queue() -> None:
    assert {item["metadata"]["name"]: item["value"] for item in of_kind("WorkloadPriorityClass")} == {
        "low": 100, "medium": 500, "high": 1000,
    }  # fmt: skip
    (queue,) = of_kind("ClusterQueue", pool("a-0"))
    assert queue["spec"]["preemption"] == {"withinClusterQueue": "LowerPriority"}
    assert queue["spec"]["namespaceSelector"] == {}


def test_only_queued_pools_ask_google_for_nodes() -> None:
    kinds = ("ProvisioningRequestConfig", "AdmissionCheck")
    assert [of_kind(kind, pool("a-0")) for kind in kinds] == [[], []]
    queued = [
        pool(f"{name}-0", provisioning="queued", topology=topology)
        for name, topology in (("a", "4x4"), ("b", "8x8"), ("c", "4x4"))
    ]
    configs, checks = (of_kind(kind, *queued) for kind in kinds)
    assert [(item["metadata"]["name"], item["spec"]) for item in configs] == [
        (f"provisioning-{topology}", {
            "provisioningClassName": "queued-provisioning.gke.io", "managedResources": [TPU],
            "parameters": {"tpu-topology": topology},
        }) for topology in ("4x4", "8x8")
    ]  # fmt: skip
    assert {check["spec"]["controllerName"] for check in checks} == {"kueue.x-k8s.io/provisioning-request"}
    assert [check["spec"]["parameters"]["name"] for check in checks] == [
        item["metadata"]["name"] for item in configs
    ]
    (queue,) = of_kind("ClusterQueue", *queued)
    strategy = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert [(check["name"], len(check["onFlavors"])) for check in strategy] == [
        ("provisioning-4x4", 1), ("provisioning-8x8", 1),
    ]  # fmt: skip


def test_a_job_on_queued_pools_says_for_how_long_it_wants_nodes() -> None:
    annotations = job(scales=True, queued_s=3600, cluster="c")["metadata"]["annotations"]
    assert annotations == {
        "tpu-cluster": "c", "provreq.kueue.x-k8s.io/maxRunDurationSeconds": "3600",
    }  # fmt: skip


def job(**more: Any) -> dict[str, Any]:
    host = Job(
        "train", TEAMS[1], "image@sha256:0", ["workload"], topology="4x4", hosts=4, chips_per_host=4, **more
    )
    return jobset(host)


def test_a_job_names_its_teams_queue_and_its_priority() -> None:
    meta = job(priority="high")["metadata"]
    assert meta == {
        "name": "train",
        "namespace": "team-speech",
        "labels": {"kueue.x-k8s.io/queue-name": "speech", "kueue.x-k8s.io/priority-class": "high"},
    }


def test_one_pod_on_each_host_with_all_of_its_chips() -> None:
    spec = job()["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (4, 4, 0)
    (worker,) = spec["template"]["spec"]["containers"]
    assert worker["resources"]["limits"] == {TPU: "4"}
    assert worker["resources"]["requests"][TPU] == "4"
    assert spec["template"]["spec"]["automountServiceAccountToken"] is False


def test_a_job_as_a_whole() -> None:
    """Names that pods resolve, who counts for its end, and how each failure of a pod is judged."""
    spec = job()["spec"]
    assert spec["coordinator"] == {"replicatedJob": "slice", "jobIndex": 0, "podIndex": 0}
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["slice"]}
    assert spec["ttlSecondsAfterFinished"] == 7 * 24 * 3600
    assert spec["failurePolicy"]["rules"][2]["targetReplicatedJobs"] == ["slice"]
    inner = spec["replicatedJobs"][0]["template"]["spec"]
    assert inner["completionMode"] == "Indexed"
    exits = {"containerName": "worker", "operator": "In"}
    assert inner["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {**exits, "values": [75, 143]}},
        {"action": "FailJob", "onExitCodes": {**exits, "values": [69, 134, 137]}},
    ]
    pod = inner["template"]["spec"]
    assert (pod["restartPolicy"], pod["serviceAccountName"], pod["terminationGracePeriodSeconds"]) == (
        "Never", "trainer", 30,
    )  # fmt: skip
    assert pod["nodeSelector"] == {"cloud.google.com/gke-tpu-topology": "4x4"}
    assert pod["containers"][0]["resources"]["requests"] == {TPU: "4", "cpu": "1", "memory": "1Gi"}
    places = {
        container["name"]: container["valueFrom"]["fieldRef"]["fieldPath"]
        for container in pod["containers"][0]["env"]
        if "valueFrom" in container
    }
    assert places == {
        "JOB_COORDINATOR": "metadata.annotations['jobset.sigs.k8s.io/coordinator']",
        "JOB_SLICE": "metadata.annotations['jobset.sigs.k8s.io/job-index']",
        "JOB_WORKER": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    }


@pytest.mark.parametrize("slices", [1, 2])
def test_a_slice_is_placed_whole(slices: int) -> None:
    replicated = job(slices=slices)["spec"]["replicatedJobs"][0]
    annotations = replicated["template"]["spec"]["template"]["metadata"]["annotations"]
    assert replicated["replicas"] == slices
    pool_label = "cloud.google.com/gke-nodepool"
    if slices == 1:
        assert annotations == {"kueue.x-k8s.io/podset-required-topology": pool_label}
    else:
        assert annotations == {
            "kueue.x-k8s.io/podset-slice-required-topology": pool_label,
            "kueue.x-k8s.io/podset-slice-size": "4",
        }


def test_disruption_spends_no_restart_and_a_failure_ends_the_job() -> None:
    policy = job(restarts=2)["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 2
    assert [rule["action"] for rule in policy["rules"]] == [
        "RestartJobSetAndIgnoreMaxRestarts", "RestartJobSet", "FailJobSet",
    ]  # fmt: skip
    assert [rule.get("onJobFailureReasons") for rule in policy["rules"]] == [
        *2 * (["PodFailurePolicy"],),
        None,
    ]
    (pattern,) = policy["rules"][0]["onJobFailureMessagePatterns"]
    # As Kubernetes writes it: pkg/controller/job/pod_failure_policy.go.
    messages = [
        f"Container worker for pod n/p failed with exit code 1 matching FailJob rule at index {i}"
        for i in range(3)
    ]
    assert [bool(re.search(pattern, message)) for message in messages] == [True, True, False]


OWN = [
    Team("vision", "vision", "quota", "tpu-vision", (Quota("a", 32), Quota("b", 16, 0)), 2),
    Team("speech", "speech", "quota", "tpu-speech"),
]


def test_teams_with_quotas_have_a_queue_each_in_a_cohort_and_borrow_the_rest() -> None:
    pools = [pool("a-0"), pool("a-1"), pool("a-2"), pool("b-0", provisioning="spot")]
    made = {item["metadata"]["name"]: item["spec"] for item in objects(pools, teams=OWN)
            if item["kind"] == "ClusterQueue"}  # fmt: skip

    def chips(name: str) -> list[dict[str, str]]:
        (group,) = made[name]["resourceGroups"]
        return [flavor["resources"][0] for flavor in group["flavors"][1:]]

    assert chips("tpu") == [{"name": TPU, "nominalQuota": "16"}, {"name": TPU, "nominalQuota": "0"}]
    assert chips("tpu-vision") == [
        {"name": TPU, "nominalQuota": "32"}, {"name": TPU, "nominalQuota": "16", "borrowingLimit": "0"},
    ]  # fmt: skip
    assert chips("tpu-speech") == [{"name": TPU, "nominalQuota": "0"}] * 2
    (group,) = made["tpu-vision"]["resourceGroups"]
    assert group["flavors"][1]["resources"][1:] == [
        {"name": "cpu", "nominalQuota": "1432"}, {"name": "memory", "nominalQuota": "5440Gi"},
    ]  # fmt: skip
    assert {spec["cohortName"] for spec in made.values()} == {"tpu"}
    assert made["tpu-vision"]["fairSharing"] == {"weight": "2"}
    assert made["tpu-speech"]["preemption"] == {
        "withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any",
    }  # fmt: skip
    assert [local_queue(team)["spec"]["clusterQueue"] for team in OWN] == ["tpu-vision", "tpu-speech"]


def test_teams_without_quotas_share_one_queue_outside_of_any_cohort() -> None:
    (queue,) = [item for item in objects([pool("a-0")], teams=TEAMS) if item["kind"] == "ClusterQueue"]
    assert "cohortName" not in queue["spec"]


def test_only_teams_that_may_not_have_all_priorities_are_limited() -> None:
    limited = [Team("vision", "vision", priorities=("low", "medium")), TEAMS[1]]
    first, _, updates, binding = admission.objects(
        [pool("a-0")], limited, "projects/p/locations/l/clusters/c"
    )
    (problems,) = [item["expression"] for item in first["spec"]["variables"] if item["name"] == "problems"]
    assert '{"vision": ["low", "medium"]}[request.namespace]' in problems
    assert updates["spec"]["matchConstraints"]["resourceRules"][0]["operations"] == ["UPDATE"]
    assert "variables.priority == variables.before" in updates["spec"]["validations"][0]["expression"]
    assert binding["spec"]["policyName"] == updates["metadata"]["name"]
    assert len(list(admission.objects([pool("a-0")], TEAMS, "projects/p/locations/l/clusters/c"))) == 2
