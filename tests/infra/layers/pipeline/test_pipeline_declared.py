"""The pipeline's buckets, triggers and grants, and settings that can't work."""

import base64
import json
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
from google.api_core.exceptions import PreconditionFailed

from infra.errors import SettingsError
from infra.layers.pipeline import access, spark
from infra.layers.pipeline.names import scratch_bucket
from infra.publish import pipeline as code
from tests.infra.declared import CLUSTER, OFF, UP
from tests.infra.layers.pipeline.test_pipeline_layer import FLEET, JOBSET, VERTEX, batch, settings, up
from tests.infra.recording import Recording, run


def ran(command: str) -> dict[str, Any]:
    """A slice of the fleet that runs this."""
    return {**FLEET, "pipeline:trainRun": command}


BUCKETS, CHECKPOINTS = "gcp:storage/bucket:Bucket", "my-project-checkpoints"


def test_text_is_kept_and_of_scratch_the_code_alone() -> None:
    raw, scratch = up({"pipeline:rawNearlineDays": 30, "pipeline:scratchDays": 3}).of(BUCKETS)
    unfinished = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}
    colder = {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 30}}
    assert raw.inputs["lifecycleRules"] == [unfinished, colder]
    assert raw.inputs["softDeletePolicy"] == {"retentionDurationSeconds": 604800}
    assert (raw.options["protect"], raw.options["retainOnDelete"]) == (True, True)
    prefixes = ["google-cloud-dataproc-metainfo/", "tmp/"]  # and not code/, with which a run retries
    removed = {"action": {"type": "Delete"}, "condition": {"age": 3, "matchesPrefixes": prefixes}}
    assert scratch.inputs["lifecycleRules"] == [unfinished, removed]
    assert scratch.inputs["softDeletePolicy"] == {"retentionDurationSeconds": 0}
    assert up().of(BUCKETS)[0].inputs["lifecycleRules"] == [unfinished]


def test_its_runs_hold_the_stack() -> None:
    recording = up()
    guard = recording.named("pulumi-python:dynamic:Resource", "runs")
    labels = {"bucket": f"{CHECKPOINTS}-fleet", "folder": "pipeline", "train": "none"}
    assert guard.inputs["labels"] == labels
    assert recording.resources[-1] is guard


@pytest.mark.parametrize(("minutes", "schedule"), [(None, "*/1 * * * *"), (5, "*/5 * * * *")])
def test_an_object_of_the_raw_bucket_and_each_sweep_call_the_function(
    minutes: int | None, schedule: str
) -> None:
    recording = up({"pipeline:sweepMinutes": minutes} if minutes else {})
    event = recording.only("gcp:eventarc/trigger:Trigger").inputs
    assert event["matchingCriterias"] == [
        {"attribute": "type", "value": "google.cloud.storage.object.v1.finalized"},
        {"attribute": "bucket", "value": "my-project-raw"},
    ]
    assert event["destination"] == {"cloudRunService": {"service": "tpu-pipeline", "region": "us-east5"}}
    job = recording.only("gcp:cloudscheduler/job:Job").inputs
    assert (job["schedule"], job["timeZone"], job["attemptDeadline"]) == (schedule, "Etc/UTC", "1800s")
    target = job["httpTarget"]
    assert json.loads(base64.b64decode(target["body"])) == {"sweep": True}
    caller = "tpu-pipeline-trigger@my-project.iam.gserviceaccount.com"
    assert event["serviceAccount"] == target["oidcToken"]["serviceAccountEmail"] == caller
    assert target["oidcToken"]["audience"] == target["uri"]
    agents = {
        resource.inputs["role"]: resource.inputs["member"].partition("@")[2]
        for resource in recording.of("gcp:projects/iAMMember:IAMMember")
        if resource.name.startswith("agent-")
    }
    assert agents == {
        access.EVENTARC_AGENT_ROLE: "gcp-sa-eventarc.iam.gserviceaccount.com",
        access.STORAGE_AGENT_ROLE: "gs-project-accounts.iam.gserviceaccount.com",
    }


def test_people_have_a_runners_roles_or_a_viewers_and_who_applies_acts_as_what_runs() -> None:
    ada, bob, sre = "user:ada@example.com", "user:bob@example.com", "group:sre@example.com"
    given = {"pipeline:runners": [ada], "pipeline:viewers": [ada, bob], "pipeline:accountUsers": [sre]}
    recording = up({**OFF["builds"], **given})
    grants = [
        resource.inputs for resource in recording.resources if resource.type.lower().endswith("iammember")
    ]

    def roles(who: str) -> set[tuple[str, str]]:
        return {(item["role"], item.get("bucket", "")) for item in grants if item["member"] == who}

    known = settings(given)
    view = "serviceAccount:tpu-pipeline-view@my-project.iam.gserviceaccount.com"
    for who, which in ((ada, access.RUNNER), (bob, access.VIEWER), (view, access.VIEWER)):
        table = [grant for grant in access.of_people(known) if grant.who == which]
        assert roles(who) == {(item.role, item.what if item.on == "bucket" else "") for item in table}
    acts = {f"tpu-pipeline-{which}" for which in ("run", "trigger", "build")}
    applies = "serviceAccount:tpu-builds@my-project.iam.gserviceaccount.com"
    for who, more in ((sre, {"tpu-pipeline-view"}), (applies, set())):
        ids = [
            item["serviceAccountId"]
            for item in grants
            if item["member"] == who and "serviceAccountId" in item
        ]
        assert {item.rpartition("/")[2].partition("@")[0] for item in ids} == acts | more


@pytest.mark.parametrize("users", [["group:sre@example.com"], []])
def test_what_runs_as_its_accounts_waits_until_its_maker_may_act_as_them(users: list[str]) -> None:
    recording = up({"pipeline:accountUsers": users})
    kinds = ("cloudfunctionsv2/function:Function", "eventarc/trigger:Trigger", "cloudscheduler/job:Job")
    waits = [recording.only(f"gcp:{kind}").options.get("hooks", {}).get("beforeCreate") for kind in kinds]
    assert waits == [["may-act"] if users else None] * 3


@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize(("location", "message"), [
    ("US-CENTRAL1", "my-project-raw, which is in us-central1"),
    ("US", "my-project-raw, which is in us"),
    ("", "my-project-raw, which can't be looked up: .*does not exist"),
])  # fmt: skip
def test_somebody_elses_raw_bucket_is_beside_spark_or_nothing_is_made(
    preview: bool, location: str, message: str
) -> None:
    into: list[Recording] = []
    values = {**OFF["pipeline"], "pipeline:existingRawBucket": True}
    with pytest.raises(pulumi.RunError, match=rf"(?s)pipeline:rawBucketName = {message}.*in us-east5.*fix: "):
        run("pipeline", values, preview=preview, up=UP, raw_location=location, into=into)
    (recording,) = into
    (call,) = [item for item in recording.calls if item[0].endswith(":getBucket")]
    assert call[1] == {"name": "my-project-raw", "project": "my-project"}
    assert "pulumi:providers:gcp::gcp::" in call[2]
    assert not [resource for resource in recording.resources if resource.type.startswith("gcp:")]


def test_a_raw_bucket_may_be_named_by_a_domain() -> None:
    """The scratch bucket, which is made here, has a name that needs no domain."""
    known = settings(pipeline__rawBucketName="raw.example.com", pipeline__existingRawBucket=True)
    assert scratch_bucket(known) == "raw-example-com-scratch"


def test_a_raw_bucket_of_somebody_else_is_granted_to_spark() -> None:
    def raw(**more: Any) -> set[tuple[str, str]]:
        known = settings(pipeline__runners=["user:a@example.com"], **more)
        every = [*access.grants(known), *access.of_people(known)]
        return {(item.who, item.role) for item in every if item.what == "my-project-raw"}

    assert raw(pipeline__existingRawBucket=True) - raw() == {
        ("tpu-pipeline-spark", "roles/storage.objectViewer"),
    }


@pytest.mark.parametrize(("given", "message"), [
    ({"pipeline:scratchBucketName": "my-project-raw"}, "scratchBucketName.*bucket is that of the raw text"),
    ({"pipeline:rawBucketName": f"{CHECKPOINTS}-steps"}, "that bucket is that of running jobs' saves"),
    ({"pipeline:rawBucketName": f"{CHECKPOINTS}-fleet"}, "that bucket is the fleet controller's"),
    ({"pipeline:rawBucketName": "my-state", "storage:stateBucketName": "my-state"},
     "that bucket is that of Pulumi's state"),
    ({"pipeline:driverMemoryMib": 60000}, "driverMemoryMib = 62400 MiB(?s:.*)less memory, or more cores"),
    ({"pipeline:executorMemoryMib": 1024, "pipeline:executorOverheadMib": 384},
     "executorMemoryMib = 1408 MiB(?s:.*)more memory, or fewer cores"),
    ({"pipeline:maxExecutors": 56, "network:subnetRanges": {"us-east5": "10.64.0.0/26"}}, "56.*: 55 fit"),
    (ran("train tiny.toml --nam @RUN@ --set data.path=@DATA@"), "--nam isn't an option of train"),
    (ran("train nosuch.toml --name @RUN@ --set data.path=@DATA@"), "without tpu:code: nothing brings nosuch"),
    (ran("train tiny.tml --name @RUN@ --set data.path=@DATA@"), "perhaps tiny.toml was meant"),
    (ran("python train.py @RUN@ @DATA@"), "without tpu:code: nothing brings train.py"),
    (ran("train tiny.toml --set data.path=@DATA@"), 'DATA@" without @RUN@: a run trains on its own shards'),
    (ran("train tiny.toml --name @RUN@"), "without @DATA@"),
    (ran("train tiny.toml"), "without @RUN@ and @DATA@"),
    ({**JOBSET, "pipeline:trainRun": "train tiny.toml"}, "trainRun = .* without @RUN@ and @DATA@"),
    ({**VERTEX, "pipeline:trainRun": "python train.py @RUN@ @DATA@"}, "a command of the workload"),
    ({"pipeline:changes": ["nosuch.key=1"]}, r"changes\[0\] = .*a key of the job's configuration"),
    ({"pipeline:changes": ["output.shads=4"]}, "perhaps output.shards was meant"),
    ({"pipeline:changes": ["output.shards=two"]}, "output.shards is a whole number"),
    ({"pipeline:changes": ["output.shards=2", "output.url=gs://elsewhere/x"]}, r"\[1\] = .* sets output.url"),
    ({"pipeline:changes": ["input.sources=gs://other/"]}, "each run sets input.sources"),
    ({"pipeline:train": "vertex"}, "trainImage = nothing: a custom job runs in an image"),
    ({**JOBSET, "queue:teams": [{"name": "vision"}]},
     "members without it: the function submits as a member of the team"),
])  # fmt: skip
def test_what_cannot_work_is_refused_with_the_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(given)


def test_sparks_settings_are_the_batchs() -> None:
    given = {
        "driverCores": 8, "driverMemoryMib": 20000, "driverOverheadMib": 4000, "executorCores": 16,
        "executorMemoryMib": 30000, "executorOverheadMib": 20000, "minExecutors": 3, "maxExecutors": 5,
        "diskGib": 400,
    }  # fmt: skip
    made = batch(
        settings(
            {f"pipeline:{key}": value for key, value in given.items()}, pipeline__changes=["output.shards=2"]
        )
    )
    result = made["runtimeConfig"]["properties"]
    expected = {
        "driver.cores": "8", "driver.memory": "20000m", "driver.memoryOverhead": "4000m",
        "executor.cores": "16", "executor.memory": "30000m", "executor.memoryOverhead": "20000m",
        "dynamicAllocation.minExecutors": "3", "dynamicAllocation.maxExecutors": "5",
        "dynamicAllocation.initialExecutors": "3", "sql.shuffle.partitions": "160",
        "dataproc.driver.disk.size": "400g", "dataproc.executor.disk.size": "400g",
        "dataproc.driver.compute.tier": "standard", "dataproc.executor.compute.tier": "standard",
    }  # fmt: skip
    assert {key: result[f"spark.{key}"] for key in expected} == expected
    assert made["pysparkBatch"]["args"][-2:] == ["--set", "output.shards=2"]


def test_a_runtime_is_supported_on_its_last_day() -> None:
    assert list(spark.runtime_problems(settings(), date(2027, 11, 26))) == []


class Scratch:
    """A bucket for code, in which some objects are."""

    def __init__(self, *names: str) -> None:
        self.names, self.sent = set(names), dict[str, bytes]()

    def bucket(self, name: str) -> "Scratch":
        assert name == "my-project-raw-scratch"
        return self

    def blob(self, name: str) -> SimpleNamespace:
        def upload_from_filename(path: str, if_generation_match: int, **_: object) -> None:
            assert if_generation_match == 0, "what batches run with is never written over"
            if name in self.names:
                raise PreconditionFailed("conditionNotMet")  # type: ignore[no-untyped-call]
            self.sent[name] = Path(path).read_bytes()

        return SimpleNamespace(upload_from_filename=upload_from_filename)


@pytest.mark.parametrize("upload", [True, False])
def test_code_that_is_there_is_not_sent_again_and_a_dry_run_sends_nothing(
    upload: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("b.zip", "a.py", "c.gz")}
    for name, path in files.items():
        path.write_text(name)
    folder = f"code/{code.identity(files)}"
    assert code.identity(dict(reversed(files.items()))) in folder, "whatever their order"
    scratch = Scratch(f"{folder}/a.py")
    monkeypatch.setattr(code.storage, "Client", lambda project: scratch)
    monkeypatch.setattr(code, "built", lambda *_: files)
    recorded: list[tuple[str, ...]] = []
    monkeypatch.setattr(code, "record", lambda *given: recorded.append(given[:3]))
    assert code.publish(settings(), tmp_path, upload=upload) == 0
    left = {f"{folder}/b.zip": b"b.zip", f"{folder}/c.gz": b"c.gz"}
    assert scratch.sent == (left if upload else {})
    assert recorded == ([("dev", "pipeline:code", folder.removeprefix("code/"))] if upload else [])
    assert ("b.zip, c.gz sent" if upload else "not sent") in capsys.readouterr().out


def test_training_in_a_queue_waits_for_the_first_bundle_with_the_update_and_not_with_the_settings() -> None:
    """Publishing reads the settings, too."""
    more = {**OFF["pipeline"], **JOBSET, "queue:install": "bundle", "tpu:bundle": None}
    preview = run("pipeline", more, preview=True, up={**UP, "gke": CLUSTER})
    assert any("tpu:bundle: no bundle was published" in line for line in preview.log)
    with pytest.raises(pulumi.RunError, match=r"tpu:bundle: no bundle .*\n    fix: tpu publish dev"):
        run("pipeline", more, up={**UP, "gke": CLUSTER})
    assert run("pipeline", {**more, "queue:install": "image"}, up={**UP, "gke": CLUSTER}).resources
