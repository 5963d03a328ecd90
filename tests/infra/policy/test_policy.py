"""The rules: all stacks obey them, and of each rule a change to one property is noticed by it alone."""

import asyncio
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import date
from functools import cache
from typing import Any

import pulumi
import pytest
from pulumi.output import Unknown

from infra.engine.enforce import enforce
from infra.errors import InfraError
from infra.policy import RULES, STACK, Resource, findings, refuse_wrong_settings, wrong_settings
from infra.settings.schema import Settings
from tests.infra.declared import EVERYTHING, LAYERS, OFF, UP
from tests.infra.declared import declared as declared_by
from tests.infra.policy.policy_mutants import (
    ALERT,
    BUCKET,
    CHECKPOINTS,
    CLUSTER,
    COLDER,
    DASHBOARD,
    FIREWALL,
    FUNCTION,
    FURTHER,
    GONE,
    HOSTS,
    MEMBER,
    MUTANTS,
    OBJECT,
    OF_OTHER_TYPES,
    STEPS,
    UNFINISHED,
    VM,
)
from tests.infra.recording import BASE, UNKNOWN, Registration, parsed, run


def settings(environment: str = "dev", **more: Any) -> Settings:
    return changed_settings(environment, more) if more else known(environment)


@cache
def known(environment: str) -> Settings:
    return changed_settings(environment, {})


def changed_settings(environment: str, more: Mapping[str, Any]) -> Settings:
    values = {key: value for key, value in {**BASE, **EVERYTHING, **more}.items() if value is not None}
    return parsed(values, environment)


def resource(item: Registration) -> Resource:
    options = item.options
    return Resource(
        item.type, item.name, foreseen(item.inputs), bool(options.get("protect")),
        bool(options.get("retainOnDelete")),
    )  # fmt: skip


def foreseen(value: Any) -> Any:
    """Return inputs as `enforce` has them in a preview: without what is unknown then."""
    if isinstance(value, Mapping):
        return {key: foreseen(item) for key, item in value.items() if item != UNKNOWN}
    return [foreseen(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module", name="declared")
def _declared() -> list[Resource]:
    """All that all layers declare."""
    return [resource(item) for layer in LAYERS for item in declared_by(layer).resources]


@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_obeys_every_rule(layer: str, preview: bool) -> None:
    done = [resource(item) for item in declared_by(layer, preview).resources]
    assert done
    assert [str(finding.problem) for finding in findings(RULES, done, settings())] == []


def test_the_pipeline_obeys_before_anything_is_up() -> None:
    """Conditions and members are known to the first preview, or they would be refused."""
    planned = run(
        "pipeline", OFF["pipeline"], preview=True, up={key: UP[key] for key in UP if key != "storage"}
    )
    done = [resource(item) for item in planned.resources]
    assert [str(finding.problem) for finding in findings(RULES, done, settings())] == []


def changed(resource: Resource, path: str, value: Any) -> Resource:
    """A resource with another input, or without it; `protect` is its option."""
    if path == "protect":
        return replace(resource, protect=value)
    inputs = deepcopy(dict(resource.inputs))
    *above, last = path.split(".")
    place: Any = inputs
    for part in above:
        place = place[int(part)] if part.isdecimal() else place.setdefault(part, {})
    if value is GONE:
        del place[last]
    else:
        place[last] = value
    return replace(resource, inputs=inputs)


@pytest.mark.parametrize(("rule", "kind", "name", "path", "value"), [*MUTANTS, *FURTHER])
def test_one_property_breaks_one_rule(
    rule: str, kind: str, name: str, path: str, value: Any, declared: list[Resource]
) -> None:
    (entry,) = [item for item in declared if (item.type, item.name) == (kind, name)]
    result = list(findings(RULES, [changed(entry, path, value)], settings(), declared))
    assert {finding.rule.id for finding in result} == {rule}
    assert path.rpartition(".")[2] in result[0].value or path.partition(".")[0] in result[0].value


@pytest.mark.parametrize(("rule", "item"), OF_OTHER_TYPES)
def test_what_no_stack_declares_is_refused(rule: str, item: Resource) -> None:
    assert {finding.rule.id for finding in findings(RULES, [item], settings())} == {rule}


def line(filter_: str, legend: str = "", *groups: str) -> Resource:
    """A dashboard of one chart with one line."""
    series = {"filter": filter_, "aggregation": {"groupByFields": groups}}
    shown = {"legendTemplate": legend, "timeSeriesQuery": {"timeSeriesFilter": series}}
    content = {"mosaicLayout": {"tiles": [{"widget": {"xyChart": {"dataSets": [shown]}}}]}}
    return Resource(DASHBOARD, "chart", {"dashboardJson": json.dumps(content)})


@pytest.mark.parametrize(("chart", "texts"), [
    (line('resource.type="tpu_workers"'), ['resource.type="tpu_workers", perhaps tpu_worker']),
    (line('resource.type = "tpu_worker"', "${resource.labels.node_name}"), ["labels.node_name, where tpu"]),
    (line('resource.type="tpu_worker"', "", "resource.labels.node_name"), ["labels.node_name, where tpu"]),
    (line('resource.type="tpu_worker"', "${resource.labels.node_id}"), []),
    (line('resource.type="bigquery_project"', "${resource.labels.anything}"), []),
    (line('resource.type="tpu_worker" OR resource.type="gcs_bucket"', "${resource.labels.zone}"), []),
    (line('resource.type="tpu_worker" OR resource.type="gcs_bucket"',
          "${resource.labels.node_id} ${resource.labels.bucket_name}"), []),
])  # fmt: skip
def test_a_chart_names_a_resource_and_labels_that_there_are(chart: Resource, texts: list[str]) -> None:
    problems = [finding.value for finding in findings(RULES, [chart], settings())]
    assert len(problems) == len(texts)
    assert all(text in problem for text, problem in zip(texts, problems, strict=True))


def test_a_functions_source_is_uploaded_before_the_function(declared: list[Resource]) -> None:
    (entry,) = [item for item in declared if item.type == FUNCTION]
    before = [other for other in declared if other.type == OBJECT]
    assert list(findings(RULES, [entry], settings(), [*before, entry])) == []
    assert [f.rule.id for f in findings(RULES, [entry], settings(), [entry])] == ["PL18"]
    to_come = changed(entry, "buildConfig.source.storageSource.object", GONE)
    assert list(findings(RULES, [to_come], settings(), [entry])) == [], "an update knows it"


@pytest.fixture(name="engine")
def _engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Registers resources as the engine would, and returns what was logged."""
    transforms: list[Any] = []
    logged: list[str] = []
    monkeypatch.setattr(pulumi.runtime, "register_resource_transform", transforms.append)
    monkeypatch.setattr(pulumi.log, "error", logged.append)

    def register(*resources: Resource) -> list[str]:
        enforce(settings(), "network")

        async def all_of_them() -> None:
            for item in resources:
                inputs = {key: make() if callable(make) else make for key, make in item.inputs.items()}
                options = pulumi.ResourceOptions(protect=item.protect, retain_on_delete=item.retain_on_delete)
                await transforms[-1](
                    pulumi.ResourceTransformArgs(True, item.type, item.name, inputs, options)
                )

        asyncio.run(all_of_them())
        return logged

    return register


def test_the_engine_is_refused_a_function_whose_source_no_one_uploads(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (function,) = [item for item in declared if item.type == FUNCTION]
    (source,) = [item for item in declared if (item.type, item.name) == (OBJECT, "source")]
    second = changed(source, "name", f"function/{'0' * 64}.zip")
    assert engine(source, function) == []
    for order in ((function,), (function, source), (second, function)):
        with pytest.raises(pulumi.RunError, match="tpu-pipeline breaks the policy: PL18"):
            engine(*order)
    assert "storageSource: my-project-raw-scratch/function/" in engine()[0]


def test_the_engine_is_refused_a_bucket_without_the_options_that_keep_it(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (entry,) = [item for item in declared if (item.type, item.name) == (BUCKET, CHECKPOINTS)]
    assert engine(entry) == []
    with pytest.raises(pulumi.RunError, match="breaks the policy: B07"):
        engine(replace(entry, protect=False))
    endless = changed(entry, "lifecycleRules", [])
    with pytest.raises(pulumi.RunError, match="breaks the policy: B08"):
        engine(endless)
    assert len(engine(replace(endless, retain_on_delete=False))) == 2


def test_what_a_preview_cannot_know_counts_as_absent(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (entry,) = [item for item in declared if (item.type, item.name) == (FIREWALL, "tpu-training-ssh")]
    whole = {key: lambda: pulumi.Output.from_input(Unknown()) for key in ("targetTags", "sourceRanges")}
    with pytest.raises(pulumi.RunError, match="breaks the policy: N06"):
        engine(replace(entry, inputs={**entry.inputs, **whole}))
    assert len(engine()) == 1


def test_a_list_of_what_a_preview_cannot_know_is_not_empty(
    declared: list[Resource], engine: Callable[..., list[str]]
) -> None:
    (entry,) = [item for item in declared if (item.type, item.name) == (ALERT, "run-stalled")]
    assert engine(replace(entry, inputs={**entry.inputs, "notificationChannels": [Unknown()]})) == []
    with pytest.raises(pulumi.RunError, match="breaks the policy: PL6"):
        engine(replace(entry, inputs={**entry.inputs, "notificationChannels": []}))


@pytest.mark.parametrize(("runtime", "refused"), [
    ("python312", False), ("python38", True), ("python310", True), ("nodejs22", False),
])  # fmt: skip
def test_a_functions_python_has_years_ahead_of_it(
    runtime: str, refused: bool, declared: list[Resource]
) -> None:
    (entry,) = [item for item in declared if item.type == FUNCTION]
    result = findings(RULES, [changed(entry, "buildConfig.runtime", runtime)], settings(), declared)
    assert [f.rule.id for f in result] == (["PL19"] if refused else [])


def test_text_may_go_to_a_colder_class_where_checkpoints_may_not(declared: list[Resource]) -> None:
    (raw,) = [item for item in declared if (item.type, item.name) == (BUCKET, "my-project-raw")]
    assert list(findings(RULES, [changed(raw, "lifecycleRules", [UNFINISHED, COLDER])], settings())) == []


@pytest.mark.parametrize("secret", [
    "password=correcthorsebattery", "api_key: 'abcdef012345'", "TOKEN=abcdef012345", "ghp_" + "a" * 36,
    "hf_" + "b" * 30, "ya29." + "c" * 20, "AIza" + "d" * 35, "-----BEGIN RSA PRIVATE KEY-----",
])  # fmt: skip
def test_a_finding_prints_nothing_of_a_secret(secret: str, declared: list[Resource]) -> None:
    (entry,) = [item for item in declared if (item.type, item.name) == (VM, "train")]
    (result,) = findings(RULES, [changed(entry, "metadata.tpu-note", secret)], settings())
    assert not any(secret[at : at + 4] in str(result.problem) for at in range(len(secret) - 3))


def test_a_key_of_ones_own_encrypts_the_checkpoints(declared: list[Resource]) -> None:
    key = "projects/my-project/locations/us-east5/keyRings/r/cryptoKeys/k"
    keyed = settings(**{"storage:kmsKey": key})
    items = [item for item in declared if item.name in (CHECKPOINTS, STEPS) and item.type == BUCKET]
    result = list(findings(RULES, items, keyed))
    assert [item.rule.id for item in result] == ["B06", "B06"]
    encrypted = [changed(item, "encryption.defaultKmsKeyName", key) for item in items]
    assert list(findings(RULES, encrypted, keyed)) == []


def test_what_is_deleted_can_be_recovered_for_a_week(declared: list[Resource]) -> None:
    (entry,) = [item for item in declared if (item.type, item.name) == (BUCKET, CHECKPOINTS)]
    bare = changed(entry, "versioning.enabled", False)
    assert list(findings(RULES, [bare], settings())) == [], "soft delete remains"
    assert list(findings(RULES, [changed(bare, "softDeletePolicy", GONE)], settings())) == [], "the default"
    for seconds in (0, 86400, 604799):
        short = changed(bare, "softDeletePolicy.retentionDurationSeconds", seconds)
        assert [f.rule.id for f in findings(RULES, [short], settings())] == ["B04"]
    week = changed(bare, "softDeletePolicy.retentionDurationSeconds", 604800)
    assert list(findings(RULES, [week], settings())) == []
    (controllers,) = [item for item in declared if (item.type, item.name) == (BUCKET, f"{CHECKPOINTS}-fleet")]
    anew = changed(controllers, "softDeletePolicy.retentionDurationSeconds", 0)
    assert list(findings(RULES, [anew], settings())) == [], "it is written anew all the time"


def test_a_cluster_is_protected_outside_of_dev(declared: list[Resource]) -> None:
    (entry,) = [item for item in declared if item.type == CLUSTER]
    for value in (False, GONE):
        bare = changed(entry, "deletionProtection", value)
        assert list(findings(RULES, [bare], settings())) == []
        assert [f.rule.id for f in findings(RULES, [bare], settings("prod"))] == ["K09"]


@pytest.mark.parametrize(("member", "refused"), [
    ("group:sre@example.com", False), (f"serviceAccount:{HOSTS}", True),
    ("serviceAccount:tpu-builds@my-project.iam.gserviceaccount.com", False),
    ("serviceAccount:not-tpu-builds@my-project.iam.gserviceaccount.com", True),
])  # fmt: skip
def test_people_may_administer_what_no_program_may_but_the_one_that_applies(
    member: str, refused: bool
) -> None:
    item = Resource(MEMBER, "admins", {"role": "roles/tpu.admin", "member": member})
    assert [finding.rule.id for finding in findings(RULES, [item], settings())] == ["I02"] * refused


def test_a_binding_to_everybody_breaks_the_rule_about_everybody_too() -> None:
    inputs = {"role": "roles/storage.objectViewer", "members": ["user:a@example.com", "allUsers"]}
    item = Resource("gcp:storage/bucketIAMBinding:BucketIAMBinding", "b", inputs)
    assert {finding.rule.id for finding in findings(RULES, [item], settings())} == {"B03", "I07"}


@pytest.mark.parametrize(("allowed", "refused"), [
    ({"protocol": "tcp", "ports": ["22"]}, True), ({"protocol": "tcp", "ports": ["80", "20-25"]}, True),
    ({"protocol": "tcp", "ports": ["0-65535"]}, True), ({"protocol": "tcp"}, True),
    ({"protocol": "all"}, True), ({"protocol": "6", "ports": ["22"]}, True),
    ({"protocol": "tcp", "ports": ["80", "23-25"]}, False), ({"protocol": "udp", "ports": ["22"]}, False),
    ({"protocol": "icmp"}, False),
])  # fmt: skip
def test_whatever_lets_ssh_in_comes_from_the_proxy_alone(allowed: dict[str, Any], refused: bool) -> None:
    inputs = {"direction": "INGRESS", "targetServiceAccounts": [HOSTS], "sourceRanges": ["203.0.113.0/24"]}
    item = Resource(FIREWALL, "way-in", {**inputs, "allows": [{"protocol": "icmp"}, allowed]})
    assert [finding.rule.id for finding in findings(RULES, [item], settings())] == ["N05"] * refused


def test_a_rule_of_unknown_direction_may_be_a_way_in() -> None:
    inputs = {"targetTags": ["tpu"], "sourceRanges": ["0.0.0.0/0"], "allows": [{"protocol": "icmp"}]}
    for more, broken in (({}, {"N04", "N06"}), ({"direction": "EGRESS"}, set())):
        item = Resource(FIREWALL, "way-in", {**inputs, **more})
        assert {finding.rule.id for finding in findings(RULES, [item], settings())} == broken


BUDGET_KEYS = ("monitoring:billingAccount", "monitoring:budgetPerMonth")
WITHOUT_BUDGET: dict[str, Any] = dict.fromkeys(BUDGET_KEYS)
WITHOUT_MONITORING = dict.fromkeys(key for key in EVERYTHING if key.startswith("monitoring:"))


@pytest.mark.parametrize(("environment", "gone", "refused"), [
    ("prod", {}, False), ("dev", WITHOUT_BUDGET, False), ("eu", WITHOUT_BUDGET, True),
    ("prod", WITHOUT_BUDGET, True), ("prod", WITHOUT_MONITORING, True),
])  # fmt: skip
def test_an_environment_outside_of_dev_has_a_budget(
    environment: str, gone: dict[str, Any], refused: bool
) -> None:
    stack, other = (Resource(STACK, f"{layer}-{environment}", {}) for layer in ("storage", "tpu"))
    checked = settings(environment, **gone)
    assert not [*findings(RULES, [other], checked)], "reported once"
    result = [str(finding.problem) for finding in findings(RULES, [stack], checked)]
    assert len(result) == refused
    assert [finding.mandatory(checked) for finding in findings(RULES, [stack], checked)] == (
        [environment == "prod"] * refused
    )
    assert all("monitoring:budgetPerMonth: nothing: PL22: an environment other" in item for item in result)


def test_a_program_is_refused_for_its_stack_before_it_declares_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transforms: list[Any] = []
    logged: list[str] = []
    monkeypatch.setattr(pulumi.runtime, "register_resource_transform", transforms.append)
    for log in ("error", "warn"):
        monkeypatch.setattr(pulumi.log, log, logged.append)
    without = {**WITHOUT_BUDGET}
    with pytest.raises(pulumi.RunError, match="storage-prod breaks the policy: PL22"):
        enforce(settings("prod", **without), "storage")
    assert (len(logged), transforms) == (1, [])
    enforce(settings("staging", **without), "storage")  # advice there
    assert (len(logged), len(transforms)) == (2, 1)
    mapping = {"rule": "PL22", "resource": "*-prod", "reason": "one for all projects", "until": "2027-03-31"}
    enforce(settings("prod", **without, **{"policy:exceptions": [mapping]}), "storage")
    assert (len(logged), len(transforms)) == (2, 2)


@pytest.mark.parametrize("member", [
    "principal://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p.svc.id.goog/subject/ns/a/sa/b",
    "principalSet://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p.svc.id.goog/*",
    GONE,
])  # fmt: skip
@pytest.mark.parametrize(("role", "rule"), [
    ("roles/resourcemanager.projectIamAdmin", "I02"), ("roles/dataproc.worker", "I13"),
])  # fmt: skip
def test_pods_and_members_that_a_preview_cannot_know_are_programs(
    member: Any, role: str, rule: str, declared: list[Resource]
) -> None:
    (entry,) = [item for item in declared if (item.type, item.name) == (MEMBER, "tpu-training-logWriter")]
    entry = changed(entry, "role", role)
    assert [f.rule.id for f in findings(RULES, [changed(entry, "member", member)], settings())] == [rule]
    assert list(findings(RULES, [changed(entry, "member", "user:ada@example.com")], settings())) == []


@pytest.mark.parametrize("key", ["gke:nodeRoles", "gke:workloadRoles"])
def test_a_role_of_the_settings_is_judged_as_any(key: str) -> None:
    values = {**OFF["gke"], "policy:enforcement": None, key: ["roles/resourcemanager.projectIamAdmin"]}
    done = [resource(item) for item in run("gke", values, preview=True, up=UP).resources]
    assert {f.rule.id for f in findings(RULES, done, settings(**{key: values[key]}))} == {"I02"}


def test_every_rule_has_a_change_that_breaks_it() -> None:
    tried = {row[0] for row in MUTANTS} | {rule for rule, _ in OF_OTHER_TYPES} | {"B04", "B06", "K09", "PL22"}
    assert tried == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


def exceptions(**changes: Any) -> Settings:
    mapping = {
        "rule": "N05",
        "resource": "tpu-*-ssh",
        "reason": "the office's own VPN",
        "until": "2027-03-31",
    }
    return settings(**{"policy:exceptions": [{**mapping, **changes}]})


def broken(declared: list[Resource]) -> Resource:
    (entry,) = [item for item in declared if (item.type, item.name) == (FIREWALL, "tpu-training-ssh")]
    return changed(entry, "sourceRanges", ["203.0.113.0/24"])


def test_an_exception_allows_what_it_names_and_nothing_else(declared: list[Resource]) -> None:
    item = broken(declared)
    assert [f.exception is not None for f in findings(RULES, [item], exceptions())] == [True]
    for resource in ("other", "tpu-training-s"):
        assert [f.exception for f in findings(RULES, [item], exceptions(resource=resource))] == [None]
    assert [f.exception for f in findings(RULES, [item], exceptions(rule="N04"))] == [None]


WRONG: list[tuple[Mapping[str, str], str]] = [
    ({"rule": "N99"}, 'rule = "N99": must be the id of a rule'),
    ({"until": "2026-11-23"}, "until = 2026-11-23: an exception ends on its date"),
    ({"until": "2027-11-26"}, "until = 2027-11-26: an exception lasts for a year at most"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_an_exception_past_its_date_or_for_no_rule_is_refused(
    changes: Mapping[str, str], message: str
) -> None:
    (problem,) = wrong_settings(RULES, exceptions(**changes), date(2026, 11, 24))
    assert message in str(problem)
    with pytest.raises(InfraError, match="policy:exceptions"):
        refuse_wrong_settings(RULES, exceptions(**changes), date(2026, 11, 24))
    assert list(wrong_settings(RULES, exceptions(until="2026-11-24"), date(2026, 11, 24))) == []


@pytest.mark.parametrize(("changes", "message"), [
    ({"reason": ""}, "a reason, in words"),
    ({"until": "31.3.2027"}, "a date, year-month-day"),
    ({"until": "2027-02-30"}, "a date, year-month-day"),
    ({"until": "2027-03-31 00:00:00 +0000 UTC"}, "in quotes"),  # a date without quotes, as Pulumi has it
    ({"rule": "x"}, "must be the id of a rule"),
    ({"resource": "*"}, "three letters of it beside"),
    ({"resource": "?*[a-z]*"}, "three letters of it beside"),
])  # fmt: skip
def test_an_exception_says_why_and_until_when(changes: Mapping[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        exceptions(**changes)
