"""Each defect on docs/seed-terraform.md: the check that is named refuses the recipe's own value."""

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
from infra.policy import RULES, Resource, findings
from infra.settings import parse
from infra.settings.sources import as_pulumi_hands_it_over
from tests.infra.engine import BASE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "seed-terraform.md").read_text(encoding="utf-8")
ROWS = {
    id_: (claim, fact, refused)
    for id_, claim, fact, refused in re.findall(
        r"^\| (S\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE
    )
}
NOT_YET = "not yet"
CHECKS = [
    (id_, kind, name)
    for id_, (_, _, refused) in ROWS.items()
    for kind, name in re.findall(r"`(\w+) ([^`]+)`", refused)
]
ACCOUNT = "serviceAccount:ml-pipeline-sa@my-project.iam.gserviceaccount.com"


def granted(role: str) -> Resource:
    return Resource(
        "gcp:projects/iAMMember:IAMMember", "ml_pipeline_roles", {"role": role, "member": ACCOUNT}
    )


def bucket(**inputs: Any) -> Resource:
    return Resource("gcp:storage/bucket:Bucket", "ml_training_bucket", inputs, protect=True)


RESOURCES: Mapping[str, Resource] = {
    "S02": Resource("gcp:vertex/aiCustomJob:AiCustomJob", "tpu_training_job", {}),
    "S04": Resource("gcp:dataproc/batch:Batch", "preprocessing_batch", {"batchId": "preprocessing"}),
    "S13": Resource(
        "gcp:monitoring/alertPolicy:AlertPolicy",
        "tpu_training_alerts",
        {"displayName": "TPU Training Alerts", "notificationChannels": ["projects/p/notificationChannels/c"]},
    ),
    "S21": granted("roles/storage.admin"),
    "S22": granted("roles/tpu.admin"),
    "S23": granted("roles/compute.instanceAdmin.v1"),
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
    "S27": bucket(publicAccessPrevention="enforced", forceDestroy=True),
    "S28": bucket(forceDestroy=False),
    "S29": granted("roles/editor"),
}
"""What the recipe declares, as Pulumi has it."""

_SLICE = {"name": "training", "acceleratorType": "v6e-8"}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "S09": {"tpu:slices": [{**_SLICE, "zones": ["us-central2-b"]}]},
    "S10": {"tpu:slices": [{**_SLICE, "zones": ["us-east5-b"], "preemptible": True}]},
}
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


def test_the_page_counts_what_it_lists() -> None:
    not_yet = [id_ for id_, (_, _, refused) in ROWS.items() if refused == NOT_YET]
    counts = f"{len(ROWS)} defects: {len(ROWS) - len(not_yet)} refused here, {len(not_yet)} not yet."
    assert counts in PAGE
    assert list(ROWS) == [f"S{number:02}" for number in range(1, len(ROWS) + 1)]
    assert len(ROWS) == PAGE.count("\n| S")
    assert all(refused == NOT_YET or any(id_ == one for one, _, _ in CHECKS)
               for id_, (_, _, refused) in ROWS.items())  # fmt: skip


def test_every_check_is_executed_and_no_value_is_left_over() -> None:
    named = {kind: {id_ for id_, one, _ in CHECKS if one == kind} for _, kind, _ in CHECKS}
    assert named["policy"] == set(RESOURCES)
    assert named["setting"] == set(SETTINGS)
    assert named["price"] == set(PRICES)
    assert set(named) == {"policy", "setting", "price", "provider", "test"}


@pytest.mark.parametrize(("id_", "rule"), [(id_, name) for id_, kind, name in CHECKS if kind == "policy"])
def test_the_rule_refuses_what_the_recipe_declares(id_: str, rule: str) -> None:
    assert rule in {one.id for one in RULES}
    settings = parse("dev", as_pulumi_hands_it_over(BASE, "f"), "f")
    assert rule in {one.rule.id for one in findings(RULES, [RESOURCES[id_]], settings)}


@pytest.mark.parametrize(("id_", "path"), [(id_, name) for id_, kind, name in CHECKS if kind == "setting"])
def test_the_setting_refuses_the_recipes_value(id_: str, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse("dev", as_pulumi_hands_it_over({**BASE, **SETTINGS[id_]}, "f"), "f")
    assert path in {problem.path for problem in caught.value.problems}


@pytest.mark.parametrize("type_", [name for _, kind, name in CHECKS if kind == "provider"])
def test_the_provider_has_no_such_type(type_: str) -> None:
    module, _, name = type_.partition(".")
    known = dir(getattr(pulumi_gcp, module))
    assert len(known) > 3
    assert name not in known


@pytest.mark.parametrize("id_", [id_ for id_, kind, _ in CHECKS if kind == "price"])
def test_the_book_says_what_the_page_says(id_: str) -> None:
    assert PRICES[id_]()


@pytest.mark.parametrize("name", [name for _, kind, name in CHECKS if kind == "test"])
def test_a_test_that_is_named_exists(name: str) -> None:
    found = [
        path for path in (ROOT / "tests").rglob("test_*.py") if f"def {name}(" in path.read_text("utf-8")
    ]
    assert found


def test_the_recipes_chips_are_cores_and_their_memory_is_one_chips() -> None:
    kind = CATALOG.by_name("v6e-8")
    assert kind is not None
    assert (kind.chips, kind.chips * 32) == (8, 256)
    assert "256 GB" in ROWS["S06"][1]


def test_what_reading_costs_is_the_books() -> None:
    for class_, dollars in (("nearline", "$0.01"), ("coldline", "$0.02")):
        assert f"${BOOK[f'storage.retrieval.{class_}'].price('us-east5').dollars:.2f}" == dollars
        assert dollars in ROWS["S26"][1]
