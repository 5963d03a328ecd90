"""checkov, which shares no code with our rules, on what all layers declare: 1 min, and 1 to install it."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.policy import RULES, Resource
from infra.policy.terraform import document
from tests.infra.declared import EVERYTHING as ALL
from tests.infra.declared import LAYERS, UP
from tests.infra.policy.policy_mutants import MUTANTS
from tests.infra.policy.test_policy import changed
from tests.infra.recording import Registration, run
from tests.limits import HANG_S

ROOT = Path(__file__).parents[3]
REASONS = Path(__file__).with_name("checkov.yaml")
EVERYTHING = {**ALL, "gke:securityGroup": "gke-security-groups@example.com"}
FOUND_BY_BOTH = "B01 B02 B03 I01 I02 I03 I10 K03 K04 K06 K11 K12 N02 N03 T01 T04 T05 T06 T07 T12 T13"
"""Rules whose mutants checkov finds, too; its checks of the others know other types, or look elsewhere."""

pytestmark = [pytest.mark.prove, pytest.mark.slow]
Found = dict[str, set[tuple[str, str]]]


@pytest.fixture(scope="module", name="checkov")
def _checkov() -> str:
    made = subprocess.run(
        [ROOT / "tools/setup.sh", "checkov"], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()[-1]


def resource(item: Registration) -> Resource:
    depends = {
        key: made.get("urns", ()) for key, made in item.options.get("propertyDependencies", {}).items()
    }
    return Resource(item.type, item.name, item.inputs, bool(item.options.get("protect")), depends=depends)


def declared(preview: bool) -> dict[str, list[Resource]]:
    return {
        layer: [resource(item) for item in run(layer, EVERYTHING, preview=preview, up=UP).resources]
        for layer in LAYERS
    }


def audited(program: str, layers: Mapping[str, Sequence[Resource]], folder: Path) -> Found:
    """(check, resource) of checks that failed, and of all that passed."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps(document(layers), indent=1), encoding="utf-8")
    line = [program, "-f", str(plan), "--framework", "terraform_plan", "--skip-download", "--output", "json"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    parsed: dict[str, Any] = json.loads(done.stdout)
    assert parsed["summary"]["parsing_errors"] == 0
    assert parsed["summary"]["resource_count"] == sum(
        item.type.startswith("gcp:") for layer in layers.values() for item in layer
    )
    return {
        state: {(result["check_id"], result["resource"]) for result in parsed["results"][f"{state}_checks"]}
        for state in ("failed", "passed")
    }


@pytest.mark.parametrize("preview", [True, False])
def test_all_that_checkov_finds_has_a_reason_and_every_reason_a_finding(
    checkov: str, preview: bool, tmp_path: Path
) -> None:
    result = audited(checkov, declared(preview), tmp_path)
    assert len(result["passed"]) >= 300
    reasons = [
        (item["check"], pattern)
        for item in yaml.safe_load(REASONS.read_text(encoding="utf-8"))
        for pattern in item["resources"]
    ]
    assert (
        sorted(
            (check, name)
            for check, name in result["failed"]
            if not any(check == of and fnmatchcase(name, pattern) for of, pattern in reasons)
        )
        == []
    ), "mend the layer, or write into checkov.yaml why it is so"
    assert [
        (of, pattern)
        for of, pattern in reasons
        if not any(check == of and fnmatchcase(name, pattern) for check, name in result["failed"])
    ] == [], "found no more: take it out of checkov.yaml"


def test_every_reason_is_in_words_and_names_a_rule_that_there_is() -> None:
    reasons = yaml.safe_load(REASONS.read_text(encoding="utf-8"))
    assert reasons
    for reason in reasons:
        assert re.fullmatch(r"CKV2?_GCP_\d+", reason["check"])
        assert len(reason["reason"].split()) >= 5
        assert reason["resources"]
        assert reason.get("rule") in {None, *(rule.id for rule in RULES)}
        assert not set(reason) - {"check", "rule", "reason", "resources"}


def test_what_breaks_a_rule_of_ours_is_found_by_checkov_too(checkov: str, tmp_path: Path) -> None:
    """Each mutant that changes one property, where our rule names a check of checkov's."""
    maps = {rule.id: set(re.findall(r"CKV2?_GCP_\d+", rule.maps)) for rule in RULES}
    good = declared(False)
    mutants: dict[str, list[Resource]] = {}
    rules: dict[str, str] = {}
    for i, (rule, kind, name, path, value) in enumerate(MUTANTS):
        if maps[rule] and kind.startswith("gcp:"):
            (element,) = [
                entry for item in good.values() for entry in item if (entry.type, entry.name) == (kind, name)
            ]
            mutants |= {f"m{i}": [changed(element, path, value)], f"good{i}": [element]}
            rules[f"m{i}"] = rule
    failed = audited(checkov, mutants, tmp_path)["failed"]
    result = {(check, name.partition(".")[2].partition("_")[0]) for check, name in failed}
    both = {
        rule
        for label, rule in rules.items()
        for check in maps[rule]
        if (check, label) in result and (check, label.replace("m", "good")) not in result
    }
    assert " ".join(sorted(both)) == FOUND_BY_BOTH
