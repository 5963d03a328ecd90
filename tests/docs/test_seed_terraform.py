"""Each defect on docs/internals/seed-terraform.md: the named check refuses the recipe's own value."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pulumi_gcp
import pulumi_gcp.tpu
import pulumi_gcp.vertex
import pytest

from infra.catalog import CATALOG
from infra.catalog.book import BOOK
from infra.errors import SettingsError
from infra.layers.pipeline import facts
from infra.policy import RULES, Resource, findings
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.door.discovery import document
from tests.infra.declared import OFF
from tests.infra.recording import BASE, parsed, run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "internals" / "seed-terraform.md").read_text(encoding="utf-8")
ROWS = {
    id_: (claim, fact, refused)
    for id_, claim, fact, refused in re.findall(
        r"^\| (S\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE
    )
}
CHECKS = [
    (id_, kind, name)
    for id_, (_, _, refused) in ROWS.items()
    for kind, name in re.findall(r"`([a-z]+) ([^`]+)`", refused)
]
ACCOUNT = "serviceAccount:ml-pipeline-sa@my-project.iam.gserviceaccount.com"


def granted(role: str) -> Resource:
    return Resource(
        "gcp:projects/iAMMember:IAMMember", "ml_pipeline_roles", {"role": role, "member": ACCOUNT}
    )


def bucket(**inputs: Any) -> Resource:
    return Resource("gcp:storage/bucket:Bucket", "ml_training_bucket", inputs, protect=True)


def alert(**inputs: Any) -> Resource:
    """Its own condition, with what our rules want beside it."""
    threshold = {
        "filter": 'resource.type="tpu_worker"', "comparison": "COMPARISON_GREATER_THAN",
        "thresholdValue": 0.1, "duration": "300s", **inputs,
    }  # fmt: skip
    conditions = [{"displayName": "High TPU Error Rate", "conditionThreshold": threshold}]
    return Resource(
        "gcp:monitoring/alertPolicy:AlertPolicy",
        "tpu_training_alerts",
        {
            "displayName": "TPU Training Alerts",
            "notificationChannels": ["projects/p/notificationChannels/c"],
            "documentation": {"content": "do this"},
            "severity": "ERROR",
            "conditions": conditions,
        },
    )


def chart(filter_: str, legend: str = "", **aggregation: Any) -> Resource:
    query = {"timeSeriesFilter": {"filter": filter_, "aggregation": aggregation}}
    shown = {"timeSeriesQuery": query, "plotType": "LINE", "legendTemplate": legend}
    tile = {"width": 6, "height": 4, "widget": {"xyChart": {"dataSets": [shown]}}}
    content = {"displayName": "d", "mosaicLayout": {"tiles": [tile]}}
    return Resource(
        "gcp:monitoring/dashboard:Dashboard", "tpu_training_dashboard", {"dashboardJson": json.dumps(content)}
    )


def function(account: str = "check@p.iam.gserviceaccount.com", **build: Any) -> Resource:
    source = {"storageSource": {"bucket": "my-ml-pipeline", "object": "functions/orchestrator.zip"}}
    return Resource(
        "gcp:cloudfunctionsv2/function:Function",
        "pipeline_orchestrator",
        {
            "location": "us-east5",
            "buildConfig": {"serviceAccount": "build", "source": source, **build},
            "serviceConfig": {"serviceAccountEmail": account, "ingressSettings": "ALLOW_INTERNAL_ONLY"},
        },
    )


def colder(class_: str, days: int) -> dict[str, Any]:
    return {"action": {"type": "SetStorageClass", "storageClass": class_}, "condition": {"age": days}}


RESOURCES: Mapping[str, Resource] = {
    "S02": Resource("gcp:vertex/aiCustomJob:AiCustomJob", "tpu_training_job", {}),
    "S04": Resource("gcp:dataproc/batch:Batch", "preprocessing_batch", {"batchId": "preprocessing"}),
    "S11": alert(filter='metric.type="custom.googleapis.com/errors" AND resource.type="tpu_worker"'),
    "S12": alert(comparison="COMPARISON_GT"),
    "S13": Resource(
        "gcp:monitoring/alertPolicy:AlertPolicy",
        "tpu_training_alerts",
        {"displayName": "TPU Training Alerts", "notificationChannels": ["projects/p/notificationChannels/c"]},
    ),
    "S14": chart('resource.type="dataproc_batch"', alignmentPeriod="300s"),
    "S15": chart('resource.type="tpu_worker"', "TPU ${resource.labels.node_name}"),
    "S16": chart('resource.type="tpu_worker"', groupByFields=["resource.labels.node_name"]),
    "S17": function(),
    "S18": function(runtime="python39"),
    "S19": Resource(
        "gcp:cloudfunctionsv2/functionIamMember:FunctionIamMember",
        "invoker",
        {"role": "roles/cloudfunctions.invoker", "member": ACCOUNT},
    ),
    "S20": bucket(cors=[{"origins": ["*"], "methods": ["GET", "POST", "PUT"], "maxAgeSeconds": 3600}]),
    "S21": granted("roles/storage.admin"),
    "S22": granted("roles/tpu.admin"),
    "S23": granted("roles/compute.instanceAdmin.v1"),
    "S24": function(ACCOUNT.partition(":")[2]),
    "S25": Resource(
        "gcp:compute/firewall:Firewall",
        "tpu_firewall",
        {
            "allows": [{"protocol": "tcp", "ports": ["8470-8490", "22"]}],
            "sourceRanges": ["10.0.0.0/8"],
            "targetTags": ["ml-training"],
            "direction": "INGRESS",
        },
    ),
    "S26": bucket(
        name="my-project-checkpoints", lifecycleRules=[colder("NEARLINE", 90), colder("COLDLINE", 365)]
    ),
    "S27": bucket(publicAccessPrevention="enforced", forceDestroy=True),
    "S28": bucket(forceDestroy=False),
    "S29": granted("roles/editor"),
}
"""What the recipe declares, as Pulumi has it."""
UNDER: Mapping[str, Mapping[str, Any]] = {"S24": {"storage:serviceAccountId": "ml-pipeline-sa"}}
"""Settings under which its value is what it is there: the slices' account."""

_SLICE = {"name": "training", "acceleratorType": "v6e-8"}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "S03": {**OFF["pipeline"], "pipeline:train": "vertex", "pipeline:trainSlice": "TPU_V6E"},
    "S05": {**OFF["pipeline"], "pipeline:runtimeVersion": "2.1"},
    "S09": {"tpu:slices": [{**_SLICE, "zones": ["us-central2-b"]}]},
    "S10": {"tpu:slices": [{**_SLICE, "zones": ["us-east5-b"], "preemptible": True}]},
}
BODIES: Mapping[str, tuple[str, str, Callable[[str], dict[str, Any]], str, str]] = {
    "S03": (
        "aiplatform.v1",
        "/v1/projects/p/locations/l/customJobs",
        lambda value: {
            "displayName": "job",
            "jobSpec": {"workerPoolSpecs": [{"machineSpec": {"acceleratorType": value}}]},
        },
        "TPU_V6E",
        "TPU_V5_LITEPOD",
    ),
    "S11": (
        "monitoring.v3",
        "/v3/projects/p/alertPolicies",
        lambda value: {"conditions": [{"conditionThreshold": {"comparison": value}}]},
        "COMPARISON_GREATER_THAN",
        "COMPARISON_GT",
    ),
}
"""API, path, request, the recipe's value, and one that Google's description of the API knows."""
PRICES: Mapping[str, Callable[[], bool]] = {
    "S07": lambda: 3.20 < 8 * (BOOK["tpu.on-demand"].price("us-east5").dollars or 0) == pytest.approx(21.60),
    "S08": lambda: (
        round(
            1
            - (BOOK["tpu.spot"].price("us-east5").dollars or 0)
            / (BOOK["tpu.on-demand"].price("us-east5").dollars or 1),
            2,
        )
        == 0.48
    ),
}


def test_the_page_counts_its_rows() -> None:
    assert f"{len(ROWS)} defects: {len(ROWS)} refused here, 0 not yet." in PAGE
    assert list(ROWS) == [f"S{number:02}" for number in range(1, len(ROWS) + 1)]
    assert set(ROWS) == {id_ for id_, _, _ in CHECKS}


def test_every_check_is_executed_and_no_value_is_left_over() -> None:
    named = {kind: {id_ for id_, item, _ in CHECKS if item == kind} for _, kind, _ in CHECKS}
    assert named["policy"] == set(RESOURCES)
    assert named["setting"] == set(SETTINGS)
    assert named["price"] == set(PRICES)
    assert named["schema"] == set(BODIES)
    assert set(named) == {"policy", "setting", "price", "provider", "schema", "test"}


@pytest.mark.parametrize(("id_", "rule"), [(id_, name) for id_, kind, name in CHECKS if kind == "policy"])
def test_the_rule_refuses_what_the_recipe_declares(id_: str, rule: str) -> None:
    assert rule in {rule.id for rule in RULES}
    settings = parsed({**BASE, **UNDER.get(id_, {})})
    assert rule in {finding.rule.id for finding in findings(RULES, [RESOURCES[id_]], settings)}


@pytest.mark.parametrize(("id_", "path"), [(id_, name) for id_, kind, name in CHECKS if kind == "setting"])
def test_the_setting_refuses_the_recipes_value(id_: str, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed({**BASE, **SETTINGS[id_]})
    assert path in {problem.path for problem in caught.value.problems}


@pytest.mark.parametrize(("id_", "method"), [(id_, name) for id_, kind, name in CHECKS if kind == "schema"])
def test_googles_own_description_of_the_api_refuses_the_recipes_value(id_: str, method: str) -> None:
    api, path, body, recipes, good = BODIES[id_]
    route = document(*api.split(".")).find("POST", path)
    assert route is not None
    assert route.method_id == method
    route.check_body(body(good))
    with pytest.raises(ApiError) as caught:
        route.check_body(body(recipes))
    assert recipes in caught.value.message


@pytest.mark.parametrize("type_", [name for _, kind, name in CHECKS if kind == "provider"])
def test_the_provider_has_no_such_type(type_: str) -> None:
    module, _, name = type_.partition(".")
    known = dir(getattr(pulumi_gcp, module))
    assert len(known) > 3
    assert name not in known


@pytest.mark.parametrize("id_", [id_ for id_, kind, _ in CHECKS if kind == "price"])
def test_the_book_says_what_the_page_says(id_: str) -> None:
    assert PRICES[id_]()


def test_the_recipes_chips_are_cores_and_their_memory_is_one_chips() -> None:
    kind = CATALOG.by_name("v6e-8")
    assert kind is not None
    assert (kind.chips, kind.chips * 32) == (8, 256)
    assert "256 GB" in ROWS["S06"][1]


def test_a_legend_reaches_google_as_it_is_written() -> None:
    """Cloud Monitoring fills legends in; the program interpolates none."""
    declared = run("monitoring", OFF["monitoring"])
    for name in ("fleet", "run"):
        text = declared.named("gcp:monitoring/dashboard:Dashboard", name).inputs["dashboardJson"]
        assert '"legendTemplate": "${labels.node}"' in text


def test_dates_on_the_page_are_those_of_the_facts() -> None:
    assert str(facts.RUNTIMES["2.3"].ends) in ROWS["S05"][1]
    assert str(facts.FUNCTION_RUNTIMES["python312"]) in ROWS["S18"][1]


def test_what_reading_costs_is_the_books() -> None:
    for class_, dollars in (("nearline", "$0.01"), ("coldline", "$0.02")):
        assert f"${BOOK[f'storage.retrieval.{class_}'].price('us-east5').dollars:.2f}" == dollars
        assert dollars in ROWS["S26"][1]
