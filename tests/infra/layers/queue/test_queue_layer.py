"""Declarations of the queue layer."""

import copy
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from infra.layers.queue import manifests, versions
from infra.layers.queue.versions import IMAGES
from infra.settings.sources import ROOT
from tests.infra.declared import CLUSTER, POOL
from tests.infra.recording import UNKNOWN, UPSTREAM, Recording, run

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SETTINGS: dict[str, Any] = {
    "gke:tpuPools": [{"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b", "spot": True}],
    "gke:namespaces": ["vision", "speech"],
    "queue:teams": [
        {
            "name": "vision",
            "members": ["user:ada@example.com", "serviceAccount:ci@p.iam.gserviceaccount.com"],
        },
        {"name": "speech"},
    ],
}


def up(
    preview: bool = False,
    pools: list[dict[str, Any]] | None = None,
    cluster: dict[str, Any] | None = None,
    **changes: Any,
) -> Recording:
    """With the cluster up; in a preview before there is one."""
    if not (pools or cluster or changes):
        return _unchanged(preview)
    known = {} if preview else {"gke": {**CLUSTER, **({"pools": pools} if pools else {}), **(cluster or {})}}
    return run("queue", {**SETTINGS, **changes}, preview=preview, up={**UPSTREAM, **known})


@functools.cache
def _unchanged(preview: bool) -> Recording:
    """Return the recording that most tests read: each takes a second or two."""
    return run("queue", SETTINGS, preview=preview, up=UPSTREAM if preview else {**UPSTREAM, "gke": CLUSTER})


def manifest(recording: Recording, kind: str, name: str) -> dict[str, Any]:
    (item,) = [
        resource
        for resource in recording.resources
        if resource.type.endswith(f":{kind}") and resource.name == name
    ]
    return copy.deepcopy(item.inputs)


def test_the_commands_among_the_outputs_name_the_pool_where_there_are_several() -> None:
    pool = SETTINGS["gke:tpuPools"][0]
    both = up(**{"gke:tpuPools": [pool, {**pool, "name": "extract", "acceleratorType": "v6e-8"}]})
    assert both.exports["submit"] == [
        f"tpu job submit dev {team} --pool train -- train tiny.toml" for team in ("vision", "speech")
    ]
    assert up().exports["submit"][0] == "tpu job submit dev vision -- train tiny.toml"


@pytest.mark.parametrize("name", ["jobset", "kueue"])
def test_every_object_of_the_released_manifests_is_applied_as_it_is(name: str) -> None:
    """But for images, the descriptions in schemas of kinds, and how long Kueue waits for pods."""
    released = [item for item in yaml.load_all(manifests.files()[f"{name}.yaml"], LOADER) if item]
    staged = {resource_name(item): item for item in itertools.chain(*manifests.stages(name, "image"))}
    applied = {item.name for item in up().resources if item.type.startswith("kubernetes:")}
    assert staged.keys() == {resource_name(item) for item in released} <= applied
    for item in released:
        result = copy.deepcopy(staged[resource_name(item)])
        if item["kind"] == "Deployment":
            for own, other in zip(containers(result), containers(item), strict=True):
                assert (own["image"], own["imagePullPolicy"]) == ("image", "IfNotPresent")
                other |= {key: own[key] for key in ("image", "imagePullPolicy")}
        if item["metadata"]["name"] == "kueue-manager-config":
            (key, text), (_, released_text) = (*result["data"].items(), *item["data"].items())
            assert text.startswith(released_text)
            own = {"waitForPodsReady": {"timeout": "8760h", "recoveryTimeout": "0s"}}
            assert yaml.safe_load(text) == yaml.safe_load(released_text) | own
            item["data"][key] = text
        assert result == (undescribed(item) if item["kind"] == "CustomResourceDefinition" else item)


def undescribed(schema: Any) -> Any:
    """Return a schema without its descriptions; a property called so has a schema for a value."""
    if isinstance(schema, list):
        return [undescribed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: item for key, item in schema.items() if (key, type(item)) != ("description", str)}
    return {key: undescribed(item) for key, item in kept.items()}


def containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return result


def resource_name(item: dict[str, Any]) -> str:
    return "-".join(filter(None, (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])))


@pytest.mark.parametrize("name", ["kueue", "jobset"])
def test_what_runs_waits_for_its_kinds_and_they_for_what_is_small(name: str) -> None:
    """Pulumi writes its state after each object, and the kinds are 2 MB of it."""
    needs = {
        resource.name: {urn.rpartition("::")[2] for urn in resource.options.get("dependencies", ())}
        for resource in up().resources
        if resource.type.startswith("kubernetes:")
    }
    space, roles, kinds, running = (
        [resource_name(item) for item in stage] for stage in manifests.stages(name, "i")
    )
    assert len(space) == 1
    assert {kind.partition("-")[0] for kind in kinds} == {"CustomResourceDefinition"}
    assert all(needs[role] >= {*space} for role in roles)
    assert all(needs[name] >= {*space, *roles} for name in kinds)
    assert all(needs[name] >= {*space, *roles, *kinds} for name in running)
    # Asked about objects before it runs, a controller would refuse all of them.
    requests = {"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "Deployment"}
    assert not requests & {role.partition("-")[0] for role in (*space, *roles, *kinds)}
    assert requests - {"APIService"} <= {name.partition("-")[0] for name in running}


MIRROR = "us-east5-docker.pkg.dev/my-project/tpu-registry-k8s-io"


@pytest.mark.parametrize("name", ["kueue", "jobset"])
def test_a_controller_runs_a_released_image_by_its_digest_and_by_the_projects_own_repository(
    name: str,
) -> None:
    (deployment,) = [
        resource for resource in up().of("kubernetes:apps/v1:Deployment") if name in resource.name
    ]
    (container,) = deployment.inputs["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGES[name].replace("registry.k8s.io", MIRROR)
    assert re.fullmatch(rf"{MIRROR}/{name}/{name}:v[0-9.]+@sha256:[0-9a-f]{{64}}", container["image"])
    assert container["imagePullPolicy"] == "IfNotPresent"
    needs = {urn.rpartition("::")[2] for urn in deployment.options["dependencies"]}
    assert {"tpu-registry-k8s-io", "us-east5-tpu-registry-k8s-io-reader"} <= needs


def test_nodes_may_read_what_they_pull_and_no_other_repository() -> None:
    result = up(**{"queue:image": f"us-docker.pkg.dev/my-project/images/base@sha256:{'0' * 64}"})
    repository = result.only("gcp:artifactregistry/repository:Repository")
    assert (repository.inputs["mode"], repository.inputs["remoteRepositoryConfig"]) == (
        "REMOTE_REPOSITORY", {"commonRepository": {"uri": "https://registry.k8s.io"}},
    )  # fmt: skip
    grants = {
        (item.inputs["location"], item.inputs["repository"]): (item.inputs["role"], item.inputs["member"])
        for item in result.of("gcp:artifactregistry/repositoryIamMember:RepositoryIamMember")
    }
    reader = (
        "roles/artifactregistry.reader",
        "serviceAccount:tpu-gke-nodes@my-project.iam.gserviceaccount.com",
    )
    assert grants == {("us-east5", "tpu-registry-k8s-io"): reader, ("us", "images"): reader}


def test_an_existing_clusters_own_nodes_may_pull_the_controllers_that_run_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = {
        "": "n2-standard-4",
        "web@my-project.iam.gserviceaccount.com": "e2-standard-4",
        "tpu-gke-nodes@my-project.iam.gserviceaccount.com": "n2-standard-8",
        "tpu": "ct6e-standard-4t",
        "newer": "tpu7x-standard-4t",
    }
    configs = [{"serviceAccount": name, "machineType": machine} for name, machine in machines.items()]
    cluster = {"nodePools": [{"config": config} for config in configs]}
    monkeypatch.setattr("infra.google.client.Client.json", lambda *given: cluster)
    image = f"us-docker.pkg.dev/my-project/images/base@sha256:{'0' * 64}"
    result = up(**{"gke:existingCluster": True, "gke:clusterName": "tpu", "queue:image": image})
    grants = result.of("gcp:artifactregistry/repositoryIamMember:RepositoryIamMember")
    node_account = "tpu-gke-nodes@my-project.iam.gserviceaccount.com"
    assert sorted(
        (item.inputs["repository"], item.inputs["member"].removeprefix("serviceAccount:")) for item in grants
    ) == [
        ("images", node_account),
        ("tpu-registry-k8s-io", "123456789012-compute@developer.gserviceaccount.com"),
        ("tpu-registry-k8s-io", node_account),
        ("tpu-registry-k8s-io", "web@my-project.iam.gserviceaccount.com"),
    ]


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"networkConfig": {"datapathProvider": "ADVANCED_DATAPATH"}}, []),
        ({"networkPolicy": {"provider": "CALICO", "enabled": True}}, []),
        ({}, ["enforces no NetworkPolicy", "--location=us-east5 --enable-network-policy"]),
        (
            {
                "networkConfig": {
                    "datapathProvider": "ADVANCED_DATAPATH", "network": "projects/host/global/networks/own",
                },
                "privateClusterConfig": {"peeringName": "gke-1-peer", "masterIpv4CidrBlock": "172.16.0.0/28"},
            },
            [
                "reaches its nodes by VPC peering",
                "--project=host --network=own --source-ranges=172.16.0.0/28 --allow=tcp:8082,tcp:9443",
            ],
        ),
    ],
)  # fmt: skip
def test_a_plan_warns_of_what_an_existing_cluster_lacks_for_teams(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], words: list[str]
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("pulumi.log.warn", lambda text, *_, **__: warnings.append(text))
    monkeypatch.setattr("infra.google.client.Client.json", lambda *given: cluster)
    result = up(**{"gke:existingCluster": True, "gke:clusterName": "tpu"})
    assert len(warnings) == bool(words)
    guard = result.named("pulumi-python:dynamic:Resource", "jobs")
    assert guard.inputs["labels"] == {"cluster": "projects/my-project/locations/us-east5/clusters/tpu"}
    assert all(word in warnings[0] for word in words)


def test_images_of_ones_own_mirror_need_no_repository_of_ours() -> None:
    own = {
        f"queue:{name}Image": f"us-docker.pkg.dev/theirs/k8s/{name}:{tag}@sha256:{'0' * 64}"
        for name, tag in (("kueue", versions.KUEUE), ("jobset", versions.JOBSET))
    }
    result = up(**own)
    assert not [item for item in result.resources if "artifactregistry" in item.type]


@pytest.mark.parametrize("preview", [True, False])
def test_all_of_it_is_applied_to_the_cluster_of_the_gke_layer(preview: bool) -> None:
    recording = up(preview)
    provider = recording.only("pulumi:providers:kubernetes").inputs
    assert provider["kubeconfig"] == (UNKNOWN if preview else "{}")
    assert provider["clusterIdentifier"] == (UNKNOWN if preview else CLUSTER["endpoint"])
    applied = [resource for resource in recording.resources if resource.type.startswith("kubernetes:")]
    assert applied
    for item in applied:
        assert "pulumi:providers:kubernetes::kubernetes::" in item.options["provider"]
        assert item.inputs["metadata"]["name"]


@pytest.mark.parametrize("preview", [True, False])
def test_queues_wait_until_the_controllers_take_objects(preview: bool) -> None:
    recording = up(preview)
    ready = recording.named("pulumi-python:dynamic:Resource", "ready")
    assert ready.inputs["endpoint"] == (UNKNOWN if preview else CLUSTER["endpoint"])
    needed = {urn.rpartition("::")[2] for urn in ready.options["dependencies"]}
    assert {resource.name for resource in recording.of("kubernetes:apps/v1:Deployment")} <= needed
    queue = recording.only("tpu:queue:ClusterQueue")
    assert any(urn.endswith("::ready") for urn in queue.options["dependencies"])
    for team in recording.of("tpu:queue:TeamSpace"):
        assert any(urn.endswith("ClusterQueue-tpu") for urn in team.options["dependencies"])


def test_the_quota_follows_the_pools_that_exist_and_not_those_of_the_settings() -> None:
    recording = up(pools=[POOL, {**POOL, "name": "train-1"}])
    queue = manifest(recording, "ClusterQueue", "ClusterQueue-tpu")
    (group,) = queue["spec"]["resourceGroups"]
    chips = {flavor["name"]: flavor["resources"][0]["nominalQuota"] for flavor in group["flavors"]}
    assert chips == {"cpu": "0", "v6e-4x4-4t-spot-us-east5-b": "32"}
    assert recording.exports["chips"] == 32


@pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO"])
def test_whether_jobs_pass_one_that_does_not_fit_is_a_setting(strategy: str) -> None:
    given = {} if strategy == "BestEffortFIFO" else {"queue:queueingStrategy": strategy}
    queue = manifest(up(**given), "ClusterQueue", "ClusterQueue-tpu")
    assert queue["spec"]["queueingStrategy"] == strategy


def test_jobs_on_queued_pools_wait_for_their_nodes() -> None:
    recording = up(
        pools=[
            POOL,
            {
                **POOL,
                "name": "later-0",
                "provisioning": "queued",
                "provisioningLabel": "queued",
                "scales": True,
            },
        ]
    )
    queue = manifest(recording, "ClusterQueue", "ClusterQueue-tpu")
    checks = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert checks == [{"name": "provisioning-4x4", "onFlavors": ["v6e-4x4-4t-queued-us-east5-b"]}]
    assert manifest(recording, "AdmissionCheck", "AdmissionCheck-provisioning-4x4")["spec"]["parameters"] == {
        "apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "provisioning-4x4",
    }  # fmt: skip
    assert "admissionChecksStrategy" not in manifest(up(), "ClusterQueue", "ClusterQueue-tpu")["spec"]


@pytest.mark.parametrize("team", ["vision", "speech"])
def test_a_namespace_takes_its_claims_along_and_volumes_go_behind_it(team: str) -> None:
    """Pods of ended jobs hold claims, and claims volumes: a claim deleted by itself would be waited for."""
    result = {
        resource.name: resource for resource in up().resources if resource.type.startswith("kubernetes:")
    }
    space, claim = result[f"Namespace-{team}"], result[f"PersistentVolumeClaim-{team}-checkpoints"]
    assert claim.options["deletedWith"].endswith(f"::Namespace-{team}")
    volumes = [name for name in result if name.startswith(f"PersistentVolume-{team}-")]
    assert len(volumes) == 2
    needed = {urn.rpartition("::")[2] for urn in space.options["dependencies"]}
    assert needed >= {*volumes}


def test_people_may_submit_in_their_teams_namespace_and_do_nothing_else() -> None:
    recording = up()
    binding = manifest(recording, "RoleBinding", "RoleBinding-vision-submit-jobs")
    assert [item["name"] for item in binding["subjects"]] == [
        "ada@example.com",
        "ci@p.iam.gserviceaccount.com",
    ]
    assert manifest(recording, "RoleBinding", "RoleBinding-speech-submit-jobs")["subjects"] == []
    role = manifest(recording, "Role", "Role-vision-submit-jobs")
    writable = {
        resource
        for rule in role["rules"]
        for resource in rule["resources"]
        if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert writable == {"jobsets"}
    readable = {
        resource for rule in role["rules"] for resource in rule["resources"] if "get" in rule["verbs"]
    }
    assert readable == {
        "jobsets", "workloads", "localqueues", "localqueues/pendingworkloads", "jobs", "pods", "pods/log",
        "events", "persistentvolumeclaims",
    }  # fmt: skip
    (jobs,) = (rule for rule in role["rules"] if rule["resources"] == ["jobsets"])
    assert jobs["verbs"] == ["get", "list", "watch", "create", "delete", "patch"]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "submit-jobs",
    }  # fmt: skip


def test_no_pod_of_another_namespace_reaches_a_teams() -> None:
    recording = up()
    assert manifest(recording, "NetworkPolicy", "NetworkPolicy-vision-same-namespace")["spec"] == {
        "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}],
    }  # fmt: skip
    labels = manifest(recording, "Namespace", "Namespace-vision")["metadata"]["labels"]
    assert labels == {"tpu-team": "vision", "pod-security.kubernetes.io/enforce": "baseline"}


def test_people_reach_the_cluster_by_a_role_with_three_permissions() -> None:
    recording = up()
    role = recording.only("gcp:projects/iAMCustomRole:IAMCustomRole")
    assert role.inputs["permissions"] == [
        "container.clusters.connect", "container.clusters.get", "container.clusters.list",
    ]  # fmt: skip
    granted = [
        (resource.inputs["member"], resource.inputs["role"])
        for resource in recording.of("gcp:projects/iAMMember:IAMMember")
    ]
    assert granted == [
        (member, "projects/my-project/roles/tpuQueue_dev")
        for member in ("serviceAccount:ci@p.iam.gserviceaccount.com", "user:ada@example.com")
    ]
    for item in recording.of("gcp:projects/iAMMember:IAMMember"):
        assert any(urn.endswith("IAMCustomRole::members") for urn in item.options["dependencies"])


def test_jobs_find_the_bucket_and_the_data_of_each_zone() -> None:
    recording = up()
    bucket = manifest(recording, "PersistentVolume", "PersistentVolume-vision-checkpoints")["spec"]
    assert bucket["csi"] == {"driver": "gcsfuse.csi.storage.gke.io", "volumeHandle": "bucket-that-is-up"}
    assert bucket["persistentVolumeReclaimPolicy"] == "Retain"
    disk = manifest(recording, "PersistentVolume", "PersistentVolume-speech-data-training-data-us-east5-b")[
        "spec"
    ]
    assert disk["csi"] == {
        "driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/my-project/zones/us-east5-b/disks/up",
        "fsType": "ext4", "readOnly": True,
    }  # fmt: skip
    zone = {"key": "topology.gke.io/zone", "operator": "In", "values": ["us-east5-b"]}
    assert disk["nodeAffinity"] == {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    for item, mode in ((bucket, "ReadWriteMany"), (disk, "ReadOnlyMany")):
        assert (item["accessModes"], item["storageClassName"]) == ([mode], ""), "no class makes another"
    assert disk["claimRef"] == {"namespace": "speech", "name": "data-training-data-us-east5-b"}
    assert bucket["mountOptions"] == ["implicit-dirs"]
    claim = manifest(
        recording, "PersistentVolumeClaim", "PersistentVolumeClaim-speech-data-training-data-us-east5-b"
    )["spec"]
    assert claim["volumeName"] == "speech-data-training-data-us-east5-b"
    assert (claim["accessModes"], claim["storageClassName"]) == (["ReadOnlyMany"], "")
    assert not [
        resource for resource in up(**{"data:snapshot": None}).resources if "data-us-east5" in resource.name
    ]


def test_new_data_has_volumes_and_claims_of_its_own() -> None:
    """A claim's volume and a volume's disk never change, and a job that runs holds the old ones."""

    def claims(snapshot: str) -> set[str]:
        recording = up(**{"data:snapshot": snapshot})
        return {
            resource.name
            for kind in ("PersistentVolume", "PersistentVolumeClaim")
            for resource in recording.of(f"kubernetes:core/v1:{kind}")
            if "data-" in resource.name
        }

    old, new = claims("first"), claims("second")
    assert len(old) == len(new) > 0
    assert not old & new


@pytest.mark.parametrize(("account", "annotations"), [
    (None, {}),
    ("cloud-tpu-sa", {"iam.gke.io/gcp-service-account": "cloud-tpu-sa@my-project.iam.gserviceaccount.com"}),
])  # fmt: skip
def test_pods_run_as_the_account_that_has_the_bucket(
    account: str | None, annotations: dict[str, str]
) -> None:
    recording = up(**{"gke:workloadAccountId": account})
    item = manifest(recording, "ServiceAccount", "ServiceAccount-vision-trainer")
    assert item["metadata"]["annotations"] == annotations
    assert item["automountServiceAccountToken"] is False


def test_nothing_is_destroyed_under_a_job() -> None:
    recording = up()
    guard = recording.named("pulumi-python:dynamic:Resource", "jobs")
    assert guard.inputs["labels"] == {"environment": "dev", "layer": "gke"}
    needed = {urn.rpartition("::")[2] for urn in guard.options["dependencies"]}
    assert {
        resource.name for resource in recording.resources if resource.type.startswith("kubernetes:")
    } <= needed
    for team in ("vision", "speech"):
        guard = recording.named("pulumi-python:dynamic:Resource", f"jobs-{team}")
        assert guard.inputs["namespace"] == team
        assert any(urn.endswith(f"::Namespace-{team}") for urn in guard.options["dependencies"])
    below = run("gke", SETTINGS, up=UPSTREAM)
    assert below.named("pulumi-python:dynamic:Resource", "jobs").inputs["environment"] == "dev"
    alone = {key: value for key, value in SETTINGS.items() if not key.startswith("queue:")}
    guards = run("gke", alone, up=UPSTREAM).of("pulumi-python:dynamic:Resource")
    kinds = {guard.inputs["what"] for guard in guards} - {"fixed"}
    assert kinds == {"pods"}, "of each pool, for what runs without queues"


@pytest.mark.parametrize(("name", "version"), [("kueue", versions.KUEUE), ("jobset", versions.JOBSET)])
def test_the_manifests_are_those_of_the_images_versions(name: str, version: str) -> None:
    pins = (ROOT / "tools" / "queue" / "go.mod").read_text()
    assert f"sigs.k8s.io/{name} {version} " in pins


QUOTAS = [{"name": "vision", "quota": [{"pool": "train", "chips": 16}]}, {"name": "speech"}]


@pytest.mark.parametrize("quotas", [False, True])
def test_a_quota_brings_a_queue_for_each_team_and_fair_sharing(quotas: bool) -> None:
    recording = up(**{"queue:teams": QUOTAS}) if quotas else up()
    names = {item.name for item in recording.resources if item.type.endswith(":ClusterQueue")}
    assert {name for name in names if name.startswith("ClusterQueue-")} == (
        {"ClusterQueue-tpu", "ClusterQueue-tpu-vision", "ClusterQueue-tpu-speech"}
        if quotas
        else {"ClusterQueue-tpu"}
    )
    (text,) = manifest(recording, "ConfigMap", "ConfigMap-kueue-system-kueue-manager-config")["data"].values()
    assert ("preemptionStrategies" in yaml.load(text, LOADER).get("fairSharing", {})) == quotas
    kind = next(
        item for item in manifests._documents("kueue")
        if item["kind"] == "CustomResourceDefinition" and item["spec"]["names"]["kind"] == "ClusterQueue"
    )  # fmt: skip
    (version,) = [item for item in kind["spec"]["versions"] if item["name"] == "v1beta2"]
    known = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in names & {"ClusterQueue-tpu", "ClusterQueue-tpu-vision"}:
        assert not list(_undefined(manifest(recording, "ClusterQueue", name)["spec"], known))


def _undefined(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """Yield keys and words that a definition doesn't have."""
    if isinstance(value, dict) and "properties" in schema:
        yield from value.keys() - schema["properties"].keys()
        for key, item in value.items():
            yield from _undefined(item, schema["properties"].get(key, {}))
    elif isinstance(value, list):
        for item in value:
            yield from _undefined(item, schema["items"])
    elif "enum" in schema and value not in schema["enum"]:
        yield str(value)
