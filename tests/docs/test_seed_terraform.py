"""Each defect on docs/internals/seed-terraform.md names a check that exists, and its facts are so."""

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
from infra.layers.pipeline import facts
from infra.policy import RULES
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.door.discovery import document
from tests.infra.declared import OFF
from tests.infra.recording import run
from tests.infra.settings.test_bad_settings import CASES

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
NAMES: Mapping[str, set[str]] = {
    "policy": {rule.id for rule in RULES},
    "setting": {text.partition(" = ")[0] for case in CASES for text in case["problems"]},
    "price": set(BOOK.entries),
}
_TRAINS = {"machineSpec": {"acceleratorType": "TPU_V6E"}}
_ABOVE = {"conditionThreshold": {"comparison": "COMPARISON_GREATER_THAN"}}
BODIES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "aiplatform.projects.locations.customJobs.create": (
        "aiplatform.v1", "/v1/projects/p/locations/l/customJobs", {"jobSpec": {"workerPoolSpecs": [_TRAINS]}},
    ),
    "monitoring.projects.alertPolicies.create": (
        "monitoring.v3", "/v3/projects/p/alertPolicies", {"conditions": [_ABOVE]},
    ),
}  # fmt: skip
"""API, path, and the recipe's value."""
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


@pytest.mark.parametrize("kind", NAMES)
def test_named_checks_exist(kind: str) -> None:
    named = {name for _, item, name in CHECKS if item == kind}
    assert named
    assert named - NAMES[kind] == set()


@pytest.mark.parametrize("method", sorted({name for _, kind, name in CHECKS if kind == "schema"}))
def test_googles_own_description_of_the_api_refuses_the_recipes_value(method: str) -> None:
    api, path, body = BODIES[method]
    route = document(*api.split(".")).find("POST", path)
    assert route is not None
    assert route.method_id == method
    with pytest.raises(ApiError, match=r"TPU_V6E|COMPARISON_GREATER_THAN"):
        route.check_body(body)


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
