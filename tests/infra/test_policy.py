"""The rules: all stacks obey them, and of each rule a change to one property is noticed by it alone."""

import asyncio
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import date
from typing import Any

import pulumi
import pytest
from pulumi.output import Unknown

from infra.errors import InfraError
from infra.policy import RULES, STACK, Resource, findings, wrong_settings
from infra.policy.enforce import enforce
from infra.settings import Settings, parse
from infra.settings.sources import as_pulumi_hands_it_over
from tests.infra.engine import BASE, Registration, run
from tests.infra.test_all_layers import EVERYTHING, LAYERS, UP

BUCKET, MEMBER = "gcp:storage/bucket:Bucket", "gcp:projects/iAMMember:IAMMember"
VM, CLUSTER, POOL = "gcp:tpu/v2Vm:V2Vm", "gcp:container/cluster:Cluster", "gcp:container/nodePool:NodePool"
FIREWALL, SUBNET = "gcp:compute/firewall:Firewall", "gcp:compute/subnetwork:Subnetwork"
ALERT, METRIC = "gcp:monitoring/alertPolicy:AlertPolicy", "gcp:logging/metric:Metric"
BUDGET, CHANNEL = "gcp:billing/budget:Budget", "gcp:monitoring/notificationChannel:NotificationChannel"
NAT, KEY = "gcp:compute/routerNat:RouterNat", "gcp:kms/cryptoKey:CryptoKey"
OBJECT, TRIGGER = "gcp:storage/bucketObject:BucketObject", "gcp:eventarc/trigger:Trigger"
METRIC, BUDGET = "gcp:logging/metric:Metric", "gcp:billing/budget:Budget"
WORKFLOW, FUNCTION = "gcp:workflows/workflow:Workflow", "gcp:cloudfunctionsv2/function:Function"
SCRATCH, RUNS = "my-project-raw-scratch", "tpu-pipeline-run@my-project.iam.gserviceaccount.com"
DASHBOARD, JOB = "gcp:monitoring/dashboard:Dashboard", "gcp:cloudscheduler/job:Job"
HOSTS, ZIP = "tpu-training@my-project.iam.gserviceaccount.com", "buildConfig.source.storageSource.object"
COLDER = {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 90}}
UNFINISHED = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}
SPENT = {"thresholdPercent": 1.0, "spendBasis": "CURRENT_SPEND"}
CHECKPOINTS, STEPS = "my-project-checkpoints", "my-project-checkpoints-steps"
BUCKET_MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
KUEUE = "Deployment-kueue-system-kueue-controller-manager"
GONE = object()
OF_ALL_KINDS = {
    **EVERYTHING,
    "gke:tpuPools": [
        *EVERYTHING["gke:tpuPools"],
        {"name": "flex", "acceleratorType": "v6e-16", "zone": "us-east5-b", "flexStart": True},
        {"name": "queued", "acceleratorType": "v6e-16", "zone": "us-east5-b", "queued": True},
        {"name": "spot", "acceleratorType": "v6e-8", "zone": "us-east5-b", "spot": True, "autoscaling": True},
    ],
}


def settings(environment: str = "dev", **more: Any) -> Settings:
    values = {key: value for key, value in {**BASE, **EVERYTHING, **more}.items() if value is not None}
    return parse(environment, as_pulumi_hands_it_over(values, "f"), "f")


def resource(one: Registration) -> Resource:
    options = one.options
    return Resource(
        one.type, one.name, one.inputs, bool(options.get("protect")), bool(options.get("retainOnDelete"))
    )


@pytest.fixture(scope="module", name="declared")
def _declared() -> list[Resource]:
    """All that all layers declare."""
    return [resource(one) for layer in LAYERS for one in run(layer, EVERYTHING, up=UP).resources]


@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_obeys_every_rule(layer: str, preview: bool) -> None:
    done = [resource(one) for one in run(layer, OF_ALL_KINDS, preview=preview, up=UP).resources]
    assert done
    assert [str(one.problem) for one in findings(RULES, done, settings())] == []


def changed(one: Resource, path: str, value: Any) -> Resource:
    """A resource with another input, or without it; `protect` is its option."""
    if path == "protect":
        return replace(one, protect=value)
    inputs = deepcopy(dict(one.inputs))
    *above, last = path.split(".")
    place: Any = inputs
    for part in above:
        place = place[int(part)] if part.isdecimal() else place.setdefault(part, {})
    if value is GONE:
        del place[last]
    else:
        place[last] = value
    return replace(one, inputs=inputs)


MUTANTS: list[tuple[str, str, str, str, Any]] = [
    ("B01", BUCKET, CHECKPOINTS, "uniformBucketLevelAccess", GONE),
    ("B02", BUCKET, CHECKPOINTS, "publicAccessPrevention", "inherited"),
    ("B03", BUCKET_MEMBER, "tpu-training-steps-objectUser", "member", "allUsers"),
    ("B07", BUCKET, CHECKPOINTS, "forceDestroy", True),
    ("B07", BUCKET, CHECKPOINTS, "protect", False),
    ("B08", BUCKET, CHECKPOINTS, "lifecycleRules", []),
    ("B09", BUCKET, CHECKPOINTS, "cors", [{"origins": ["https://example.com", "*"], "methods": ["GET"]}]),
    ("B10", BUCKET, CHECKPOINTS, "lifecycleRules", [UNFINISHED, COLDER]),
    ("B10", BUCKET, STEPS, "lifecycleRules", [UNFINISHED, COLDER]),
    ("PL10", BUCKET, STEPS, "softDeletePolicy.retentionDurationSeconds", 604800),
    ("PL10", BUCKET, STEPS, "versioning.enabled", True),
    ("PL10", BUCKET, SCRATCH, "softDeletePolicy.retentionDurationSeconds", 604800),
    ("PL17", BUCKET, SCRATCH, "lifecycleRules", []),
    ("B03", "gcp:cloudrunv2/serviceIamMember:ServiceIamMember", "invoker", "member", "allUsers"),
    ("PL3", OBJECT, "source", "name", "function.zip"),
    ("PL4", WORKFLOW, "tpu-pipeline", "deletionProtection", True),
    ("PL4", WORKFLOW, "tpu-pipeline", "serviceAccount", GONE),
    ("PL5", TRIGGER, "tpu-pipeline", "serviceAccount", RUNS),
    ("PL16", FUNCTION, "tpu-pipeline", "serviceConfig.ingressSettings", "ALLOW_ALL"),
    ("PL16", FUNCTION, "tpu-pipeline", "buildConfig.serviceAccount", GONE),
    ("PL8", METRIC, "bucket-public", "labelExtractors.bucket", "EXTRACT(insertId)"),
    ("PL8", METRIC, "batches-failed", "labelExtractors.batch", "EXTRACT(protoPayload.status.message)"),
    ("PL8", METRIC, "boot-failed", "labelExtractors.stage", "EXTRACT(textPayload)"),
    ("PL12", BUDGET, "budget", "thresholdRules", [SPENT]),
    ("PL12", BUDGET, "budget", "thresholdRules", [{"thresholdPercent": 0.5}]),
    ("PL12", BUDGET, "budget", "thresholdRules", [{"thresholdPercent": 0.5}, SPENT]),
    ("PL12", BUDGET, "budget", "budgetFilter.projects", GONE),
    ("PL13", TRIGGER, "tpu-pipeline", "location", "us-central1"),
    ("PL13", WORKFLOW, "tpu-pipeline", "region", "us-central1"),
    ("PL13", FUNCTION, "tpu-pipeline", "location", GONE),
    ("PL14", FUNCTION, "tpu-pipeline", "buildConfig.source.storageSource.bucket", f"gs://{SCRATCH}"),
    ("I01", MEMBER, "tpu-training-logWriter", "role", "roles/editor"),
    ("I02", MEMBER, "tpu-training-logWriter", "role", "roles/tpu.admin"),
    ("I03", MEMBER, "tpu-training-logWriter", "role", "roles/iam.serviceAccountUser"),
    ("I05", VM, "train", "serviceAccount.email", "1-compute@developer.gserviceaccount.com"),
    ("I08", MEMBER, "tpu-training-logWriter", "role", "roles/storage.objectViewer"),
    ("I10", KEY, "pulumi-secrets", "rotationPeriod", "31536000s"),
    ("I10", KEY, "pulumi-secrets", "protect", False),
    ("I11", VM, "train", "serviceAccount.email", RUNS),
    ("I11", POOL, "cpu", "nodeConfig.serviceAccount", HOSTS),
    ("I11", WORKFLOW, "tpu-pipeline", "serviceAccount", HOSTS),
    ("I11", FUNCTION, "tpu-pipeline", "serviceConfig.serviceAccountEmail", HOSTS),
    ("I11", FUNCTION, "tpu-pipeline", "buildConfig.serviceAccount", f"projects/-/serviceAccounts/{RUNS}"),
    ("I11", JOB, "tpu-pipeline", "httpTarget.oauthToken.serviceAccountEmail", RUNS),
    ("PL18", FUNCTION, "tpu-pipeline", ZIP, "functions/orchestrator.zip"),
    ("PL18", FUNCTION, "tpu-pipeline", "buildConfig.source.storageSource.bucket", CHECKPOINTS),
    ("PL19", FUNCTION, "tpu-pipeline", "buildConfig.runtime", "python39"),
    ("PL20", ALERT, "boot-failed", "conditions.0.conditionThreshold.filter", 'resource.type="generic_node"'),
    ("PL20", ALERT, "boot-failed", "conditions.0.conditionThreshold.comparison", "COMPARISON_EQ"),
    ("PL21", METRIC, "batches-failed", "filter", 'resource.type="dataproc_batch" AND severity>=ERROR'),
    ("PL21", METRIC, "batches-failed", "labelExtractors.batch", "EXTRACT(resource.labels.batch)"),
    ("PL21", ALERT, "boot-failed", "conditions.0.conditionThreshold.aggregations.0.groupByFields",
     ["resource.label.node_name"]),
    ("N01", "gcp:compute/network:Network", "tpu-training", "autoCreateSubnetworks", GONE),
    ("N02", SUBNET, "tpu-training-us-east5", "logConfig", GONE),
    ("N03", SUBNET, "tpu-training-us-east5", "privateIpGoogleAccess", GONE),
    ("N04", FIREWALL, "tpu-training-slice-internal", "sourceRanges", ["0.0.0.0/0"]),
    ("N05", FIREWALL, "tpu-training-ssh", "sourceRanges", ["203.0.113.0/24"]),
    ("N05", FIREWALL, "tpu-training-ssh", "sourceRanges", ["35.235.240.0/20", "203.0.113.0/24"]),
    ("N06", FIREWALL, "tpu-training-ssh", "targetTags", GONE),
    ("N06", FIREWALL, "tpu-training-ssh", "direction", GONE),
    ("N07", NAT, "tpu-training-us-east5-nat", "natIpAllocateOption", "MANUAL_ONLY"),
    ("N07", NAT, "tpu-training-us-east5-nat", "logConfig.enable", False),
    ("T01", VM, "train", "networkConfig.enableExternalIps", True),
    ("T01", VM, "train", "networkConfig.enableExternalIps", GONE),
    ("T02", VM, "train", "serviceAccount", GONE),
    ("T04", VM, "train", "metadata.enable-oslogin", "FALSE"),
    ("T05", VM, "train", "metadata.block-project-ssh-keys", GONE),
    ("T06", VM, "train", "metadata.serial-port-enable", "TRUE"),
    ("T07", VM, "train", "networkConfig.canIpForward", True),
    ("T08", VM, "train", "metadata.tpu-note", "password=correcthorsebattery"),
    ("T08", VM, "train", "metadata.tpu-note", "ghp_" + "a" * 36),
    ("T09", VM, "train", "dataDisks.0.mode", "READ_WRITE"),
    ("T10", VM, "train", "runtimeVersion", "tpu-ubuntu2204-base"),
    ("K01", CLUSTER, "tpu", "privateClusterConfig.enablePrivateNodes", False),
    ("K01", CLUSTER, "tpu", "controlPlaneEndpointsConfig.ipEndpointsConfig.enabled", True),
    ("K02", CLUSTER, "tpu", "workloadIdentityConfig", GONE),
    ("K03", POOL, "cpu", "nodeConfig.shieldedInstanceConfig.enableSecureBoot", False),
    ("K04", CLUSTER, "tpu", "releaseChannel", GONE),
    ("K05", CLUSTER, "tpu", "datapathProvider", "LEGACY_DATAPATH"),
    ("K06", CLUSTER, "tpu", "enableLegacyAbac", True),
    ("K07", POOL, "cpu", "nodeConfig.serviceAccount", GONE),
    ("K10", DEPLOYMENT, KUEUE, "spec.template.spec.hostNetwork", True),
    ("K11", POOL, "cpu", "nodeConfig.workloadMetadataConfig", GONE),
    ("K12", POOL, "cpu", "management.autoRepair", False),
    ("PL6", ALERT, "boot-failed", "notificationChannels", []),
    ("PL6", ALERT, "boot-failed", "documentation", GONE),
    ("PL6", ALERT, "boot-failed", "severity", GONE),
    ("PL8", METRIC, "boot-failed", "labelExtractors.node", "EXTRACT(insertId)"),
    ("PL8", METRIC, "boot-failed", "labelExtractors", {"a": "x", "b": "x", "c": "x", "d": "x"}),
    ("PL12", BUDGET, "budget", "thresholdRules", [{"thresholdPercent": 1.0}]),
    ("PL15", CHANNEL, "hook", "labels.url", "http://hooks.example.com/tpu"),
    ("PL15", CHANNEL, "hook", "labels.url", "https://hooks.example.com/tpu?token=x"),
    ("PL15", CHANNEL, "hook", "sensitiveLabels", {"authToken": "x"}),
]  # fmt: skip
OF_OTHER_TYPES = [
    ("I04", Resource("gcp:serviceaccount/key:Key", "key", {})),
    ("I07", Resource("gcp:projects/iAMBinding:IAMBinding", "b", {"role": "roles/logging.viewer"})),
    ("PL13", Resource("gcp:vertex/aiTensorboard:AiTensorboard", "curves", {"region": "europe-west4"})),
    ("PL1", Resource("gcp:dataproc/batch:Batch", "batch", {})),
    ("I12", Resource("gcp:cloudfunctionsv2/functionIamMember:FunctionIamMember", "invoker",
                     {"role": "roles/cloudfunctions.invoker", "member": f"serviceAccount:{RUNS}"})),
    ("T11", Resource("gcp:tpu/v2QueuedResource:V2QueuedResource", "queued", {})),
    ("PL6", Resource("gcp:monitoring/alertPolicy:AlertPolicy", "alert",
                     {"documentation": {"content": "do this"}, "severity": "ERROR"})),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "kind", "name", "path", "value"), MUTANTS)
def test_one_property_breaks_one_rule(
    rule: str, kind: str, name: str, path: str, value: Any, declared: list[Resource]
) -> None:
    (one,) = [one for one in declared if (one.type, one.name) == (kind, name)]
    found = list(findings(RULES, [changed(one, path, value)], settings(), declared))
    assert {finding.rule.id for finding in found} == {rule}
    assert path.rpartition(".")[2] in found[0].found or path.partition(".")[0] in found[0].found


@pytest.mark.parametrize(("rule", "one"), OF_OTHER_TYPES, ids=[rule for rule, _ in OF_OTHER_TYPES])
def test_what_no_stack_declares_is_refused(rule: str, one: Resource) -> None:
    assert {finding.rule.id for finding in findings(RULES, [one], settings())} == {rule}


def line(filter_: str, legend: str = "") -> Resource:
    """A dashboard of one chart with one line."""
    shown = {"legendTemplate": legend, "timeSeriesQuery": {"timeSeriesFilter": {"filter": filter_}}}
    content = {"mosaicLayout": {"tiles": [{"widget": {"xyChart": {"dataSets": [shown]}}}]}}
    return Resource(DASHBOARD, "chart", {"dashboardJson": json.dumps(content)})


@pytest.mark.parametrize(("one", "found"), [
    (line('resource.type="tpu_workers"'), ['resource.type="tpu_workers", perhaps tpu_worker']),
    (line('resource.type = "tpu_worker"', "${resource.labels.node_name}"), ["labels.node_name, where tpu"]),
    (line('resource.type="tpu_worker"', "${resource.labels.node_id}"), []),
    (line('resource.type="bigquery_project"', "${resource.labels.anything}"), []),
    (line('resource.type="tpu_worker" OR resource.type="gcs_bucket"', "${resource.labels.zone}"), []),
])  # fmt: skip
def test_a_chart_names_a_resource_and_labels_that_there_are(one: Resource, found: list[str]) -> None:
    problems = [finding.found for finding in findings(RULES, [one], settings())]
    assert len(problems) == len(found)
    assert all(text in problem for text, problem in zip(found, problems, strict=True))


def test_a_functions_source_is_uploaded_before_the_function(declared: list[Resource]) -> None:
    (one,) = [one for one in declared if one.type == FUNCTION]
    before = [other for other in declared if other.type == OBJECT]
    assert list(findings(RULES, [one], settings(), [*before, one])) == []
    assert [f.rule.id for f in findings(RULES, [one], settings(), [one])] == ["PL18"]


@pytest.fixture(name="engine")
def _engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Registers resources as the engine would, and returns what was logged."""
    transforms: list[Any] = []
    logged: list[str] = []
    monkeypatch.setattr(pulumi.runtime, "register_resource_transform", transforms.append)
    monkeypatch.setattr(pulumi.log, "error", logged.append)

    def register(*resources: Resource) -> list[str]:
        enforce(settings(), "network", date(2026, 11, 24))

        async def all_of_them() -> None:
            for one in resources:
                inputs = {key: make() if callable(make) else make for key, make in one.inputs.items()}
                options = pulumi.ResourceOptions()
                await transforms[-1](pulumi.ResourceTransformArgs(True, one.type, one.name, inputs, options))

        asyncio.run(all_of_them())
        return logged

    return register


def test_the_engine_is_refused_a_function_whose_source_no_one_uploads(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (function,) = [one for one in declared if one.type == FUNCTION]
    (source,) = [one for one in declared if (one.type, one.name) == (OBJECT, "source")]
    assert engine(source, function) == []
    for order in ((function,), (function, source)):
        with pytest.raises(pulumi.RunError, match="tpu-pipeline breaks the policy: PL18"):
            engine(*order)
    assert "storageSource: my-project-raw-scratch/function-" in engine()[0]


def test_what_a_preview_cannot_know_counts_as_absent(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (one,) = [one for one in declared if (one.type, one.name) == (FIREWALL, "tpu-training-ssh")]
    whole = {key: lambda: pulumi.Output.from_input(Unknown()) for key in ("targetTags", "sourceRanges")}
    with pytest.raises(pulumi.RunError, match="breaks the policy: N06"):
        engine(replace(one, inputs={**one.inputs, **whole}))
    assert len(engine()) == 1


def test_a_list_of_what_a_preview_cannot_know_is_not_empty(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (one,) = [one for one in declared if (one.type, one.name) == (ALERT, "run-stalled")]
    assert engine(replace(one, inputs={**one.inputs, "notificationChannels": [Unknown()]})) == []
    with pytest.raises(pulumi.RunError, match="breaks the policy: PL6"):
        engine(replace(one, inputs={**one.inputs, "notificationChannels": []}))


def test_what_the_engine_hands_over_as_a_secret_output_is_checked(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (one,) = [one for one in declared if (one.type, one.name) == (OBJECT, "settings")]
    text = one.inputs["content"]["value"]
    assert engine(replace(one, inputs={**one.inputs, "content": lambda: pulumi.Output.secret(text)})) == []
    ended = text.replace('"version": "2.3"', '"version": "2.1"')
    assert ended != text
    with pytest.raises(pulumi.RunError, match="settings breaks the policy: PL2"):
        engine(replace(one, inputs={**one.inputs, "content": lambda: pulumi.Output.secret(ended)}))


@pytest.mark.parametrize(("runtime", "refused"), [
    ("python312", False), ("python38", True), ("python310", True), ("nodejs22", False),
])  # fmt: skip
def test_a_functions_python_has_years_ahead_of_it(
    runtime: str, refused: bool, declared: list[Resource]
) -> None:
    (one,) = [one for one in declared if one.type == FUNCTION]
    found = findings(RULES, [changed(one, "buildConfig.runtime", runtime)], settings(), declared)
    assert [f.rule.id for f in found] == (["PL19"] if refused else [])


def test_text_may_go_to_a_colder_class_where_checkpoints_may_not(declared: list[Resource]) -> None:
    (raw,) = [one for one in declared if (one.type, one.name) == (BUCKET, "my-project-raw")]
    assert list(findings(RULES, [changed(raw, "lifecycleRules", [UNFINISHED, COLDER])], settings())) == []


BATCHES: list[tuple[str, str, Any]] = [
    ("PL2", "runtimeConfig.version", "2.2"),
    ("PL2", "environmentConfig.executionConfig.ttl", GONE),
    ("PL2", "environmentConfig.executionConfig.subnetworkUri", ""),
    ("PL2", "environmentConfig.executionConfig.serviceAccount", RUNS),
    ("PL14", "environmentConfig.executionConfig.stagingBucket", f"gs://{SCRATCH}"),
]


@pytest.mark.parametrize(("rule", "path", "value"), BATCHES)
def test_one_property_of_the_batch_that_the_workflow_starts_breaks_one_rule(
    rule: str, path: str, value: Any, declared: list[Resource]
) -> None:
    (one,) = [one for one in declared if (one.type, one.name) == (OBJECT, "settings")]
    content = Resource("", "", json.loads(one.inputs["content"]["value"]))
    batch = changed(content, f"batch.{path}", value).inputs
    (found,) = findings(RULES, [changed(one, "content.value", json.dumps(batch))], settings())
    assert found.rule.id == rule
    assert path.rpartition(".")[2] in found.found


@pytest.mark.parametrize("secret", ["password=correcthorsebattery", "ghp_" + "a" * 36])
def test_a_finding_prints_nothing_of_a_secret(secret: str, declared: list[Resource]) -> None:
    (one,) = [one for one in declared if (one.type, one.name) == (VM, "train")]
    (found,) = findings(RULES, [changed(one, "metadata.tpu-note", secret)], settings())
    assert not any(secret[at : at + 4] in str(found.problem) for at in range(len(secret) - 3))


def test_a_key_of_ones_own_encrypts_the_checkpoints(declared: list[Resource]) -> None:
    key = "projects/my-project/locations/us-east5/keyRings/r/cryptoKeys/k"
    keyed = settings(**{"storage:kmsKey": key})
    ours = [one for one in declared if one.name in (CHECKPOINTS, STEPS) and one.type == BUCKET]
    found = list(findings(RULES, ours, keyed))
    assert [one.rule.id for one in found] == ["B06", "B06"]
    encrypted = [changed(one, "encryption.defaultKmsKeyName", key) for one in ours]
    assert list(findings(RULES, encrypted, keyed)) == []


def test_what_is_deleted_can_be_recovered_for_a_week(declared: list[Resource]) -> None:
    (one,) = [one for one in declared if (one.type, one.name) == (BUCKET, CHECKPOINTS)]
    bare = changed(one, "versioning.enabled", False)
    assert list(findings(RULES, [bare], settings())) == [], "soft delete remains"
    short = changed(bare, "softDeletePolicy.retentionDurationSeconds", 86400)
    assert [f.rule.id for f in findings(RULES, [short], settings())] == ["B04"]


def test_a_cluster_is_protected_outside_of_dev(declared: list[Resource]) -> None:
    (one,) = [one for one in declared if one.type == CLUSTER]
    bare = changed(one, "deletionProtection", False)
    assert list(findings(RULES, [bare], settings())) == []
    assert [f.rule.id for f in findings(RULES, [bare], settings("prod"))] == ["K09"]


BUDGET_KEYS = ("monitoring:billingAccount", "monitoring:budgetDollarsPerMonth")
WITHOUT_BUDGET: dict[str, Any] = dict.fromkeys(BUDGET_KEYS)
WITHOUT_MONITORING = dict.fromkeys(key for key in EVERYTHING if key.startswith("monitoring:"))


@pytest.mark.parametrize(("environment", "gone", "refused"), [
    ("prod", {}, False), ("dev", WITHOUT_BUDGET, False),
    ("prod", WITHOUT_BUDGET, True), ("prod", WITHOUT_MONITORING, True),
])  # fmt: skip
def test_an_environment_outside_of_dev_has_a_budget(
    environment: str, gone: dict[str, Any], refused: bool
) -> None:
    stack = Resource(STACK, f"tpu-{environment}", {})
    found = [str(one.problem) for one in findings(RULES, [stack], settings(environment, **gone))]
    assert len(found) == refused
    assert all(
        "monitoring:budgetDollarsPerMonth: nothing. Rule: PL22: outside of dev" in one for one in found
    )


def test_a_program_is_refused_for_its_stack_before_it_declares_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transforms: list[Any] = []
    logged: list[str] = []
    monkeypatch.setattr(pulumi.runtime, "register_resource_transform", transforms.append)
    for log in ("error", "warn"):
        monkeypatch.setattr(pulumi.log, log, logged.append)
    without, today = {**WITHOUT_BUDGET}, date(2026, 11, 24)
    with pytest.raises(pulumi.RunError, match="storage-prod breaks the policy: PL22"):
        enforce(settings("prod", **without), "storage", today)
    assert (len(logged), transforms) == (1, [])
    without["policy:enforcement"] = "advisory"
    enforce(settings("staging", **without), "storage", today)
    assert (len(logged), len(transforms)) == (2, 1)
    with pytest.raises(InfraError, match=r"policy:enforcement: found advisory in prod\. Rule: "):
        enforce(settings("prod", **without), "storage", today)
    assert (len(logged), len(transforms)) == (2, 1)
    without["policy:enforcement"] = None
    one = {"rule": "PL22", "resource": "*-prod", "reason": "one for all projects", "until": "2027-03-31"}
    enforce(settings("prod", **without, **{"policy:exceptions": [one]}), "storage", today)
    assert (len(logged), len(transforms)) == (2, 2)


def test_every_rule_has_a_change_that_breaks_it() -> None:
    tried = (
        {row[0] for row in (*MUTANTS, *BATCHES)}
        | {rule for rule, _ in OF_OTHER_TYPES}
        | {"B04", "B06", "K09", "PL22"}
    )
    assert tried == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


def exceptions(**changes: Any) -> Settings:
    one = {"rule": "N05", "resource": "tpu-*-ssh", "reason": "the office's own VPN", "until": "2027-03-31"}
    return settings(**{"policy:exceptions": [{**one, **changes}]})


def broken(declared: list[Resource]) -> Resource:
    (one,) = [one for one in declared if (one.type, one.name) == (FIREWALL, "tpu-training-ssh")]
    return changed(one, "sourceRanges", ["203.0.113.0/24"])


def test_an_exception_allows_what_it_names_and_nothing_else(declared: list[Resource]) -> None:
    one = broken(declared)
    assert [f.exception is not None for f in findings(RULES, [one], exceptions())] == [True]
    assert [f.exception for f in findings(RULES, [one], exceptions(resource="other"))] == [None]
    assert [f.exception for f in findings(RULES, [one], exceptions(rule="N04"))] == [None]


WRONG: list[tuple[Mapping[str, str], str]] = [
    ({"rule": "N99"}, 'rule: found "N99". Rule: the id of a rule'),
    ({"until": "2026-11-23"}, "until: found 2026-11-23. Rule: an exception ends on its date"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_an_exception_past_its_date_or_for_no_rule_is_refused(
    changes: Mapping[str, str], message: str
) -> None:
    (problem,) = wrong_settings(RULES, exceptions(**changes), date(2026, 11, 24))
    assert message in str(problem)
    assert list(wrong_settings(RULES, exceptions(until="2026-11-24"), date(2026, 11, 24))) == []


@pytest.mark.parametrize(("changes", "message"), [
    ({"reason": ""}, "a reason, in words"),
    ({"until": "31.3.2027"}, "a date, year-month-day"),
    ({"until": "2027-02-30"}, "a date, year-month-day"),
    ({"until": "2027-03-31 00:00:00 +0000 UTC"}, "in quotes"),  # a date without quotes, as Pulumi has it
    ({"rule": "x"}, "the id of a rule"),
])  # fmt: skip
def test_an_exception_says_why_and_until_when(changes: Mapping[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        exceptions(**changes)
