"""Lengths and names that discovery documents state in prose are kept at the front door."""

from __future__ import annotations

from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

from infra.layers.pipeline import paths
from infra.settings.rules import NETWORK_NAME
from pipeline import decide
from pipeline.record import Run
from rehearsal.cloud.door.discovery import document
from rehearsal.cloud.door.lengths import limits
from tests.infra.layers.pipeline.test_pipeline_layer import settings

L = f"projects/{PROJECT}/locations/us-east5"
# Of the methods that programs here call: parameters, and fields of bodies. Those of compute have patterns.
PARAMETERS = {
    "dataproc.projects.locations.batches.create": {"batchId": (4, 63), "requestId": (0, 40)},
    "cloudfunctions.projects.locations.functions.create": {"functionId": (4, 63)},
}
FIELDS = {
    ("billingbudgets", "v1", "GoogleCloudBillingBudgetsV1Budget"): {"displayName": (0, 60)},
    ("cloudscheduler", "v1", "Job"): {"description": (0, 500)},
    ("container", "v1", "Cluster"): {"name": (0, 40)},
    ("logging", "v2", "LogMetric"): {"description": (0, 8000)},
    ("tpu", "v2", "Node"): {"description": (0, 512)},
    ("aiplatform", "v1", "GoogleCloudAiplatformV1CustomJob"): {"displayName": (0, 128)},
}


@pytest.mark.parametrize(("text", "expected"), [
    ("The maximum length is 40 characters.", (0, 40)),
    ("The final component of the name.This value must be 4-63 characters. Valid are /a-z/.", (4, 63)),
    ("Can be any string, but should not exceed 40 characters.", None),  # of a user's name, which isn't sent
    ("The first 63 characters are shown.", None),
    ("Of the form projects/P/x/ID. The ID must be 4-63 characters.", None),
    ("The name must be 1-63 characters long, or the label must be 1-20 characters long.", (1, 63)),
    ("The name must be 1-63 characters long. The label must be 1-20 characters long.", None),
])  # fmt: skip
def test_few_phrases_are_understood_and_no_two_limits(text: str, expected: tuple[int, int] | None) -> None:
    assert limits(text) == expected


def test_what_is_understood_of_the_methods_that_are_called() -> None:
    for method, expected in PARAMETERS.items():
        api = method.partition(".")[0]
        described = document(api, "v2" if api == "cloudfunctions" else "v1").methods[method]["parameters"]
        limits_by_name = {name: limits(given.get("description", "")) for name, given in described.items()}
        assert {name: limit for name, limit in limits_by_name.items() if limit} == expected, method
    for (api, version, schema), expected in FIELDS.items():
        fields = document(api, version).definitions[schema]["properties"]
        limits_by_name = {name: limits(about.get("description", "")) for name, about in fields.items()}
        assert {name: limit for name, limit in limits_by_name.items() if limit} == expected, schema


def test_the_longest_names_that_settings_allow_are_short_enough() -> None:
    longest = settings(pipeline__name="p" * 21)
    batch = decide.batch_id(paths.name(longest), Run("r" + "9" * 16, "gs://a/", "", 0.0, retry=99))
    assert len(batch) <= PARAMETERS["dataproc.projects.locations.batches.create"]["batchId"][1]
    assert not NETWORK_NAME.ok("c" * 41)
    assert NETWORK_NAME.ok("c" * FIELDS["container", "v1", "Cluster"]["name"][1])


def test_a_request_id_of_41_characters_is_refused(cloud: CloudFront) -> None:
    """The orchestrator once sent the batch's id, which a retry made as long."""
    url = f"dataproc.googleapis.com/v1/{L}/batches?batchId=batch&requestId="
    refused = cloud.request("POST", url + "r" * 41, {})
    assert (refused.status, "must be 0 to 40 characters, not 41" in refused.error) == (400, True)
    assert "request_id" not in cloud.request("POST", url + "r" * 40, {}).error


@pytest.mark.parametrize(("length", "wrong"), [(60, 0), (61, 1)])
def test_a_budget_of_a_long_name_is_refused(length: int, wrong: int) -> None:
    result: list[Any] = []
    body, schema = {"displayName": "b" * length}, {"$ref": "GoogleCloudBillingBudgetsV1Budget"}
    document("billingbudgets", "v1").schemas.compile(schema)(body, "budget", result)
    assert len(result) == wrong


@pytest.mark.parametrize(
    ("field", "status"), [("displayName", 400), ("display_name", 200), ("labels.run", 200)]
)
def test_a_filter_takes_the_names_that_its_document_names(cloud: CloudFront, field: str, status: int) -> None:
    """Vertex names `display_name` alone, and the pipeline once wrote the name of JSON."""
    url = f"us-east5-aiplatform.googleapis.com/v1/{L}/customJobs?filter={field}%3D%22r1%22"
    assert cloud.request("GET", url).status == status
