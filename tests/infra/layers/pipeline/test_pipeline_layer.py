"""Declarations of the pipeline layer, its batches and hand-offs."""

import zipfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.errors import SettingsError
from infra.layers.pipeline import access, changes, facts, paths, price, spark
from infra.publish import pipeline as code
from infra.settings.schema import Settings
from rehearsal.cloud.door import discovery
from rehearsal.cloud.iam.conditions import compile_condition
from tests.infra.declared import CLUSTER, OFF, UP
from tests.infra.recording import BASE, GENERATION, PROJECT_NUMBER, Recording, parsed, run
from workload.preprocess.config import Config, load

FLEET = {"pipeline:train": "fleet", "pipeline:trainZone": "us-east5-b"}
SWEEP = "gcp:cloudscheduler/job:Job"
FUNCTION = "gcp:cloudfunctionsv2/function:Function"
RUNS = "serviceAccount:tpu-pipeline-run@my-project.iam.gserviceaccount.com"
VERTEX = {"pipeline:train": "vertex", "pipeline:trainImage": f"us-docker.pkg.dev/p/r/i@sha256:{'0' * 64}"}
JOBSET = {
    **OFF["queue"],
    "queue:image": f"us-docker.pkg.dev/p/r/i@sha256:{'0' * 64}",
    "queue:teams": [{"name": "vision", "members": [RUNS]}],
    "pipeline:train": "jobset", "pipeline:trainTeam": "vision", "pipeline:trainSlice": "v6e-16",
}  # fmt: skip


def settings(given: Mapping[str, Any] | None = None, **more: Any) -> Settings:
    """Return the settings of a pipeline; keys are written pipeline:train or pipeline__train."""
    named = {key.replace("__", ":"): value for key, value in more.items()}
    values = {**BASE, **OFF["pipeline"], **(given or {}), **named}
    return parsed(values)


def up(more: dict[str, Any] | None = None, *, preview: bool = False) -> Recording:
    return run("pipeline", {**OFF["pipeline"], **(more or {})}, preview=preview, up=UP)


def batch(known: Settings) -> dict[str, Any]:
    return spark.batch(known, "r17", "gs://my-project-raw/corpus/")


def wrong(product: str, version: str, schema: str, body: dict[str, Any]) -> list[str]:
    result: list[Any] = []
    discovery.document(product, version).schemas.compile({"$ref": schema})(body, "", result)
    return [item.description for item in result]


def test_a_problem_of_the_jobset_names_the_settings() -> None:
    with pytest.raises(SettingsError) as caught:
        settings({**JOBSET, "pipeline:trainSlice": "v6e-64"})
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("pipeline:trainSlice", '"v6e-64"')
    assert problem.fix == "the nearest is pipeline:trainSlice: v6e-16; or add such a pool to gke:tpuPools"


def test_a_batch_is_what_the_api_describes() -> None:
    body = batch(settings())
    assert wrong("dataproc", "v1", "Batch", body) == []
    assert wrong("dataproc", "v1", "Batch", {**body, "pysparkBatch": {"main": ""}})
    execution = body["environmentConfig"]["executionConfig"]
    assert execution["ttl"] == "14400s"
    assert execution["subnetworkUri"].endswith("/us-east5/subnetworks/tpu-training-us-east5")
    assert not execution["stagingBucket"].startswith("gs://"), "a name, not a URL"
    properties = body["runtimeConfig"]["properties"]
    assert all(key.startswith("spark.") and isinstance(value, str) for key, value in properties.items())
    assert properties["spark.sql.shuffle.partitions"] == "160", "Dataproc's default is 1000"
    assert properties["spark.dynamicAllocation.maxExecutors"] == "20"


def test_a_batch_has_the_labels_of_the_bill() -> None:
    known = settings(gcp__defaultLabels={"team": "ml"})
    own = {"team": "ml", "environment": "dev", "layer": "pipeline"}
    assert batch(known)["labels"] == own


def test_the_config_of_a_batch_is_there_without_a_setting() -> None:
    config = batch(settings())["pysparkBatch"]["args"][0]
    assert load(
        config, ["input.sources=gs://my-project-raw", "output.url=gs://my-project-checkpoints/tokens"]
    )
    own = settings(pipeline__config="gs://my-project-raw/books.toml")
    assert batch(own)["pysparkBatch"]["args"][0] == "gs://my-project-raw/books.toml"


def test_changes_have_the_keys_types_and_rules_of_the_jobs_configuration() -> None:
    declared = {
        f"{table}.{key}": type(value)
        for table, values in asdict(Config()).items()
        for key, value in values.items()
        if f"{table}.{key}" not in changes.OF_RUNS
    }
    assert declared == changes.TYPES
    ruled = {
        key: rule.text
        for table in fields(Config)
        for item in fields(table.default)
        if (key := f"{table.name}.{item.name}") not in changes.PLACES and (rule := item.metadata.get("rule"))
    }
    assert ruled == {key: rule.text for key, rule in changes.RULES.items()}


def test_sparks_nodes_are_reached_by_one_another_alone() -> None:
    rule = up().only("gcp:compute/firewall:Firewall").inputs
    assert rule["sourceTags"] == rule["targetTags"] == [paths.TAG]
    assert "sourceRanges" not in rule
    assert rule["direction"] == "INGRESS"
    execution = batch(settings())["environmentConfig"]["executionConfig"]
    assert execution["networkTags"] == [paths.TAG]


def test_a_fixed_number_of_executors_is_a_setting() -> None:
    properties = spark.properties(settings(pipeline__dynamicAllocation=False, pipeline__maxExecutors=7))
    assert properties["spark.executor.instances"] == "7"
    assert not [key for key in properties if "maxExecutors" in key]


def test_a_slice_that_would_have_nothing_to_install_is_refused_with_the_update() -> None:
    for train, refused in ((FLEET, True), (VERTEX, False)):
        with pytest.raises(pulumi.RunError, match="tpu publish") if refused else nullcontext():
            run("pipeline", {**OFF["pipeline"], **train}, up=UP, published=False)


@pytest.mark.parametrize("more", [{}, FLEET, VERTEX, JOBSET])
def test_every_grant_of_the_table_is_declared_and_no_other(more: dict[str, Any]) -> None:
    known = settings(more)
    recording = run("pipeline", {**OFF["pipeline"], **more}, preview=False, up={**UP, "gke": CLUSTER})
    declared = {
        (
            resource.inputs["member"].partition(":")[2].partition("@")[0],
            resource.inputs["role"].rpartition("/")[2],
            resource.inputs.get("bucket", ""),
            resource.inputs.get("serviceAccountId", "").rpartition("/")[2].partition("@")[0],
            resource.inputs.get("condition", {}).get("expression", ""),
        )
        for resource in recording.resources
        if resource.type.lower().endswith("iammember") and "tpu-pipeline-" in resource.inputs["member"]
    }
    assert declared
    assert declared == {
        (
            grant.who,
            (grant.role or grant.role_id).rpartition("/")[2],
            grant.what if grant.on == "bucket" else "",
            grant.what if grant.on == "account" else "",
            grant.only.replace(access.STACK, UP["tpu"]["stackId"]).replace(access.NUMBER, PROJECT_NUMBER),
        )
        for grant in access.grants(known)
    }


def of_storage(who: str, permission: str, at: str) -> str:
    """As Cloud Storage refuses, with the URL that its client adds."""
    account = f"tpu-pipeline-{who}@my-project.iam.gserviceaccount.com"
    return (
        f"{account} does not have {permission} access to the Google Cloud Storage object. Permission "
        f"'{permission}' denied on resource (or it may not exist). ({at})"
    )


_API, _BUCKET = "https://storage.googleapis.com/storage/v1/b", "my-project-checkpoints"
_FUNCTION = "tpu-pipeline-run"
_ACT_AS = "Permission 'iam.serviceAccounts.actAs' denied on resource '//iam.googleapis.com/projects/p/"


@pytest.mark.parametrize(("message", "role"), [
    ("Permission 'dataproc.batches.create' denied on resource '//dataproc…'",
     "the role tpu_pipeline_run_batches on the project for tpu-pipeline-run"),
    (of_storage("spark", "storage.objects.get", f"{_API}/my-project-raw/o/a"),
     "roles/storage.objectViewer on the bucket my-project-raw for tpu-pipeline-spark"),
    (of_storage("spark", "storage.objects.get", "gs://my-project-raw-scratch/code/main.py"),
     "roles/storage.objectUser on the bucket my-project-raw-scratch for tpu-pipeline-spark"),
    (of_storage("run", "storage.objects.get", f"{_API}/my-project-checkpoints/o/tokens%2Fr1%2F_READY"),
     f"roles/storage.objectViewer on the bucket {_BUCKET}, below tokens/, for tpu-pipeline-run"),
    (of_storage("run", "storage.objects.list", f"{_API}/my-project-checkpoints/o?prefix=heartbeats%2F"),
     f"roles/storage.objectViewer on the bucket {_BUCKET}, below tokens/, for tpu-pipeline-run"),
    (of_storage("run", "storage.objects.create", f"gs://{_BUCKET}-fleet/pipeline/r1/run.json"),
     f"roles/storage.objectUser on the bucket {_BUCKET}-fleet, below pipeline/, for tpu-pipeline-run"),
    (of_storage("run", "storage.objects.delete", f"{_API}/{_BUCKET}-fleet/o/pipeline-requests%2Fr1.json"),
     f"roles/storage.objectUser on the bucket {_BUCKET}-fleet, below pipeline-requests/, for {_FUNCTION}"),
    (of_storage("run", "storage.objects.create",
                f"https://storage.googleapis.com/upload/storage/v1/b/{_BUCKET}-fleet/o?name=0123abc%2Fsize"),
     f"roles/storage.objectUser on the bucket {_BUCKET}-fleet, below STACK/, for tpu-pipeline-run"),
    (f"{_ACT_AS}serviceAccounts/tpu-training@my-project.iam.gserviceaccount.com'",
     "roles/iam.serviceAccountUser on the account tpu-training for tpu-pipeline-run"),
    ("User not authorized to act as service account 'tpu-pipeline-spark@my-project.iam.gserviceaccount.com'.",
     "roles/iam.serviceAccountUser on the account tpu-pipeline-spark for tpu-pipeline-run"),
    ("tpu-pipeline-build@my-project.iam.gserviceaccount.com lacks logging.logEntries.create",
     "roles/logging.logWriter on the project for tpu-pipeline-build"),
    ("failed to download archive gs://gcf-v2-sources-1-us-east5/tpu-pipeline/function-source.zip: Access to "
     "bucket gcf-v2-sources-1-us-east5 denied. You must grant Storage Object Viewer permission to "
     "tpu-pipeline-build@my-project.iam.gserviceaccount.com.",
     "roles/storage.objectViewer on the project, of buckets gcf-v2-sources-*, for tpu-pipeline-build"),
    ("Permission 'tpu.nodes.create' denied on resource '//tpu.googleapis.com/projects/p/locations/l'",
     "the role tpu_pipeline_run_slices on the project for tpu-pipeline-run"),
])  # fmt: skip
def test_a_refusal_names_the_role_that_is_missing(message: str, role: str) -> None:
    more = {"pipeline__train": "fleet", "pipeline__trainZone": "us-east5-b"}
    known = settings(pipeline__sparkRole="roles/dataproc.serverlessNode", **more)
    assert access.lacking(known, f"{message}, 403") == role
    assert access.lacking(known, "the disk is full") == ""


def test_the_functions_source_is_named_by_its_content() -> None:
    first, second = (up().named("gcp:storage/bucketObject:BucketObject", "source") for _ in range(2))
    assert first.inputs["name"] == second.inputs["name"]
    function = up().only(FUNCTION)
    assert function.inputs["buildConfig"]["source"]["storageSource"]["object"] == first.inputs["name"]


def test_the_function_is_built_from_the_generation_that_was_put_there() -> None:
    source = up(preview=False).only(FUNCTION).inputs["buildConfig"]["source"]["storageSource"]
    assert source["generation"] == GENERATION


def test_nobody_but_the_layer_writes_the_functions_source() -> None:
    known = settings(pipeline__sparkRole="roles/dataproc.serverlessNode", pipeline__runners=["user:a@b.org"])
    name = f"projects/_/buckets/my-project-raw-scratch/objects/{paths.FUNCTION}/{'0' * 64}.zip"
    own = [
        grant
        for grant in (*access.grants(known), *access.of_people(known))
        if grant.what == "my-project-raw-scratch"
    ]
    assert {grant.who for grant in own} == {"tpu-pipeline-spark", access.RUNNER}
    for grant in own:
        assert not compile_condition(grant.only)(name, "", frozenset()), grant.named
        code = name.replace(f"/{paths.FUNCTION}/", f"/{paths.CODE}/")
        assert compile_condition(grant.only)(code, "", frozenset()), grant.named


@pytest.mark.parametrize(("more", "variables"), [
    ({}, {}),
    (FLEET, {"TPU_STACK_ID": "0123abc"}),
    (JOBSET, {"TPU_CLUSTER_ENDPOINT": "gke-1.us-east5.gke.goog"}),
    (VERTEX, {}),
])  # fmt: skip
def test_the_function_is_one_instance_a_call_that_nobody_reaches_from_outside(
    more: dict[str, Any], variables: dict[str, str]
) -> None:
    recording = run("pipeline", {**OFF["pipeline"], **more}, preview=False, up=UP)
    (alias,) = recording.only("tpu:pipeline:Function").options["aliases"]
    assert alias["spec"]["type"] == "tpu:pipeline:CheckFunction", "one function of the name, updated in place"
    function = recording.only(FUNCTION)
    assert function.inputs["buildConfig"]["entryPoint"] == "handle"
    service = function.inputs["serviceConfig"]
    assert service == {
        "serviceAccountEmail": "tpu-pipeline-run@my-project.iam.gserviceaccount.com",
        "environmentVariables": {"TPU_ENVIRONMENT": "dev", **variables},
        "availableMemory": "512Mi", "timeoutSeconds": 1800, "maxInstanceCount": 5,
        "maxInstanceRequestConcurrency": 1, "ingressSettings": "ALLOW_INTERNAL_ONLY",
        "allTrafficOnLatestRevision": True,
    }  # fmt: skip
    invoker = recording.only("gcp:cloudrunv2/serviceIamMember:ServiceIamMember").inputs
    trigger = "serviceAccount:tpu-pipeline-trigger@my-project.iam.gserviceaccount.com"
    assert (invoker["name"], invoker["role"], invoker["member"]) == (
        "tpu-pipeline", "roles/run.invoker", trigger,
    )  # fmt: skip


def test_a_bucket_of_somebody_else_is_read_and_not_declared() -> None:
    buckets = up({"pipeline:existingRawBucket": True}).of("gcp:storage/bucket:Bucket")
    assert [item.name for item in buckets] == ["my-project-raw-scratch"]
    assert [resource.name for resource in up().of("gcp:storage/bucket:Bucket")] == [
        "my-project-raw",
        "my-project-raw-scratch",
    ]


@pytest.mark.parametrize("on_submit", [True, False])
def test_events_may_be_off_and_sweeps_never_are(on_submit: bool) -> None:
    recording = up({"pipeline:onSubmit": on_submit})
    assert len(recording.of("gcp:eventarc/trigger:Trigger")) == on_submit
    assert len(recording.of("gcp:projects/serviceIdentity:ServiceIdentity")) == on_submit
    assert len(recording.of("gcp:cloudscheduler/job:Job")) == 1


@pytest.mark.parametrize(("location", "given", "region"), [
    ("us-east5", None, "us-east4"),  # where Google has no Cloud Scheduler
    ("europe-west4", None, "europe-west4"),
    ("us-east5", "us-central1", "us-central1"),
])  # fmt: skip
def test_the_sweep_is_beside_the_function_or_in_the_nearest_region_that_has_it(
    location: str, given: str | None, region: str
) -> None:
    zones = {"us-east5": "us-east5-b", "europe-west4": "europe-west4-a"}
    values = {"storage:location": location, "tpu:zones": [zones[location]], "storage:allowCrossRegion": True}
    job = up({**values, **({"pipeline:scheduleRegion": given} if given else {})}).only(SWEEP)
    assert job.inputs["region"] == region


def test_a_region_without_cloud_scheduler_is_refused_with_the_settings() -> None:
    with pytest.raises(
        SettingsError, match=r"(?s)scheduleRegion.*us-south1.*isn't there.*fix: .*us-central1"
    ):
        settings(pipeline__scheduleRegion="us-south1")


def test_two_regions_are_two_environments() -> None:
    given = {
        "storage:location": "europe-west4", "pipeline:name": "tpu-eu",
        "tpu:zones": ["europe-west4-a"], "storage:allowCrossRegion": True,
        "pipeline:rawBucketName": "my-project-raw-eu",
    }  # fmt: skip
    remote, local = up(given), up()
    for kind in (FUNCTION, "gcp:eventarc/trigger:Trigger"):
        entry, second = remote.only(kind), local.only(kind)
        assert entry.name != second.name
        assert (entry.inputs["location"], second.inputs["location"]) == ("europe-west4", "us-east5")
    assert {resource.inputs["location"] for resource in remote.of("gcp:storage/bucket:Bucket")} == {
        "EUROPE-WEST4"
    }
    accounts = [
        {resource.name for resource in item.of("gcp:serviceaccount/account:Account")}
        for item in (remote, local)
    ]
    assert not accounts[0] & accounts[1]


def test_a_runtimes_end_is_reported_two_months_before() -> None:
    assert spark.runtime_ends_soon(settings(), date(2027, 9, 1)) == ""
    assert "ends on 2027-11-26" in spark.runtime_ends_soon(settings(), date(2027, 10, 1))
    (problem,) = spark.runtime_problems(settings(), date(2027, 11, 27))
    assert "its support ended on 2027-11-26" in str(problem)


def test_who_plans_is_warned_of_a_runtimes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [line for line in up(preview=True).log if "the support of" in line]
    soon = datetime.now(UTC).date() + timedelta(days=30)
    monkeypatch.setitem(facts.RUNTIMES, "2.3", replace(facts.RUNTIMES["2.3"], ends=soon))
    assert any(f"the support of 2.3 ends on {soon}" in line for line in up(preview=True).log)


def test_a_run_costs_most_with_all_executors_until_its_time_to_live() -> None:
    known = settings(FLEET)
    most, training = price.most_usd(known), price.training_hour_usd(known)
    spark = price.spark_usd(known, 20, 4)
    assert most is not None
    assert training is not None
    assert spark is not None
    assert most == pytest.approx(spark + training * 24)
    least = price.of_runs(known).predicted_usd(0)
    assert least is not None
    assert 0 < least < spark


def test_training_in_a_queue_costs_what_the_dearest_pool_of_its_size_does() -> None:
    item = {"acceleratorType": "v6e-16", "zone": "us-east5-b"}
    pools = [{**item, "name": "spot", "spot": True}, {**item, "name": "sure"},
             {**item, "name": "big", "acceleratorType": "v6e-64"}]  # fmt: skip
    prices = [
        price.training_hour_usd(settings(JOBSET, gke__tpuPools=subset)) for subset in (pools[:1], pools)
    ]
    assert prices == [pytest.approx(16 * 1.4033, abs=1), pytest.approx(16 * 2.70, abs=1)]
    known = settings(JOBSET, gke__tpuPools=pools, pipeline__maxRunCostUsd=10_000)
    most = price.most_usd(known)
    assert most is not None
    assert most > 16 * 2.70 * 24
    assert price.of_runs(known).training_hour_usd == prices[1]


def test_a_run_is_priced_by_its_nodes_its_text_and_its_slice() -> None:
    known, dcu, shuffle = settings(FLEET), 0.06, 0.000054795
    executor = (4 * 0.6 + 12 * 0.1) * dcu + (250 + 50) * shuffle  # dollars an hour
    driver = (4 * 0.6 + 12000 / 1024 * 0.1) * dcu + (250 + 50) * shuffle
    start, item = (driver + 2 * executor) * 2 / 60, executor / 4 * price.CORE_S_PER_GIB / 3600
    assert price.start_usd(known) == pytest.approx(start)
    assert price.usd_per_gib(known) == pytest.approx(item)
    assert price.of_runs(known).predicted_usd(10) == pytest.approx(start + 10 * item)
    result = price.of_runs(known)
    assert (result.start_usd, result.usd_per_gib) == (pytest.approx(start), pytest.approx(item))
    assert price.training_hour_usd(known) == pytest.approx(8 * 1.4033)
    assert price.training_hour_usd(settings(FLEET, pipeline__trainSpot=False)) == pytest.approx(8 * 2.70)


def test_a_price_that_the_book_lacks_is_unknown_and_never_guessed() -> None:
    premium = settings(pipeline__tier="premium")
    assert price.of_runs(premium).predicted_usd(1) is None
    assert price.of_runs(premium).shuffle_gib_hour_usd is None


def test_a_run_that_may_cost_more_than_allowed_is_refused_before_anything_starts() -> None:
    with pytest.raises(SettingsError, match=r"pipeline:maxRunCostUsd = \$1: a run costs \$\d+"):
        settings(pipeline__maxRunCostUsd=1)
    assert settings(pipeline__maxRunCostUsd=1000)
    with pytest.raises(SettingsError, match="of unknown price"):
        settings(VERTEX, pipeline__maxRunCostUsd=1000)


def test_people_and_the_function_write_in_folders_of_their_own() -> None:
    assert (paths.record("r1"), paths.request("r1")) == ("pipeline/r1/run.json", "pipeline-requests/r1.json")
    known = settings(pipeline__runners=["user:a@example.com"], pipeline__viewers=["user:b@example.com"])
    writers = {
        (grant.who, grant.folder)
        for grant in (*access.grants(known), *access.of_people(known))
        if grant.what == "my-project-checkpoints-fleet" and "storage.objects.create" in grant.permissions
    }
    assert writers == {("tpu-pipeline-run", "pipeline"), (access.RUNNER, "pipeline-requests")}


@pytest.mark.parametrize(("limit", "refused"), [(22, False), (23, True), (33, True), (34, False), (0, False)])
def test_a_budget_holds_the_files_slices_and_one_of_the_pipeline(limit: int, refused: bool) -> None:
    """$22.45 and $11.23 an hour; what the file alone exceeds, the plan refuses."""
    given = {**FLEET, **({"fleet:dollarsPerHour": limit} if limit else {})}
    match = (
        r"dollarsPerHour = \$\d+: \$22.45 an hour for the file's slices and \$11.23 for one of the pipeline"
    )
    with pytest.raises(SettingsError, match=match) if refused else nullcontext():
        settings(given)


def test_what_batches_run_leaves_out_what_the_runtime_has() -> None:
    own = "numpy==2.4.6 \\\n    --hash=sha256:aa\n"
    lock = f"{own}pyspark==3.5.3 \\\n    --hash=sha256:bb\npy4j==0.10 --hash=sha256:cc\n"
    assert code.without_runtime(lock) == own


def test_wheels_are_unpacked_as_pip_would_put_them_on_the_path(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name in (
            "a/__init__.py",
            "a-1.data/purelib/b.py",
            "a-1.data/scripts/tool",
            "a-1.dist-info/RECORD",
        ):
            packed.writestr(name, name)
    assert sorted(code.unpacked([wheel])) == ["a-1.dist-info/RECORD", "a/__init__.py", "b.py"]


def test_code_is_known_by_names_and_contents(tmp_path: Path) -> None:
    first, second = tmp_path / "x", tmp_path / "y"
    first.write_text("1")
    second.write_text("1")
    assert code.identity({"main.py": first}) == code.identity({"main.py": second})
    assert code.identity({"main.py": first}) != code.identity({"other.py": first})
    second.write_text("2")
    assert code.identity({"main.py": first}) != code.identity({"main.py": second})
