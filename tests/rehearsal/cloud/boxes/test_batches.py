"""Batches run their real main file, in a network of their own, as their account."""

from __future__ import annotations

import json
from typing import Any

import pytest
from boxed_front import REGION, Boxed, L, P

from tests.limits import until

pytestmark = pytest.mark.root
BATCHES = f"dataproc.googleapis.com/v1/{L}/batches"
# Knows nothing of where it runs: writes what it was given into the bucket by Google's own client.
JOB = b"""
import json, os, sys
from google.cloud import storage
import helper
bucket = storage.Client(project="boxed").bucket("raw")
print("working")
found = {"args": sys.argv[1:], "helper": helper.WORD, "mode": os.environ["MODE"],
         "submit": os.environ["PYSPARK_SUBMIT_ARGS"], "own": sorted(k for k in os.environ if "GOOGLE" in k)}
bucket.blob("result.json").upload_from_string(json.dumps(found), if_generation_match=0)
if sys.argv[1:] == ["fails"]:
    sys.exit("no such input")
"""


@pytest.fixture(scope="module", autouse=True)
def spark(boxed: Boxed) -> str:
    email = boxed.account("spark-runtime", "roles/dataproc.worker")
    boxed.account("without-roles")
    boxed.compute("global/networks", {"name": "net", "autoCreateSubnetworks": False})
    subnet = {"network": f"{P}/global/networks/net", "ipCidrRange": "10.0.0.0/24"}
    for name, reaches in (("spark", True), ("closed", False)):
        range_ = {"ipCidrRange": f"10.{len(name)}.0.0/24"}
        body = {"name": name, **subnet, **range_, "privateIpGoogleAccess": reaches}
        boxed.compute(f"regions/{REGION}/subnetworks", body)
    boxed.upload("job.py", JOB)
    boxed.upload("helper.py", b'WORD = "shipped"\n')
    boxed.upload("sleeps.py", b"import time\nprint('sleeping', flush=True)\ntime.sleep(600)\n")
    boxed.upload("fails.py", b"import sys\nprint('reading')\nsys.exit('no such input')\n")
    return email


def batch(email: str, main: str = "job.py", *args: str, **run: Any) -> Any:
    return {
        "pysparkBatch": {
            "mainPythonFileUri": f"gs://raw/{main}",
            "args": list(args),
            "pythonFileUris": ["gs://raw/helper.py"],
        },
        "runtimeConfig": {
            "version": "2.3",
            "properties": {"spark.executor.memory": "8g", "spark.dataproc.driverEnv.MODE": "given"},
        },
        "environmentConfig": {"executionConfig": {"serviceAccount": email, "subnetworkUri": "spark", **run}},
    }


def running(boxed: Boxed, name: str) -> None:
    """Wait until it is."""

    def begun() -> bool:
        described = boxed.answer("GET", f"{BATCHES}/{name}")
        assert described["state"] in ("PENDING", "RUNNING"), described.get("stateMessage")
        return bool(described["state"] == "RUNNING")

    until(begun)


def test_a_batch_runs_its_main_file_as_its_account(boxed: Boxed, spark: str) -> None:
    started = boxed.answer("POST", f"{BATCHES}?batchId=first", batch(spark, "job.py", "--shards", "8"))
    operation = boxed.done("dataproc.googleapis.com/v1", started)
    described = boxed.answer("GET", f"{BATCHES}/first")
    assert (described["state"], "error" in operation) == ("SUCCEEDED", False), described.get("stateMessage")
    assert [item["state"] for item in described["stateHistory"]] == ["PENDING", "RUNNING"]
    made = json.loads(boxed.read("result.json"))
    assert (made["args"], made["helper"], made["mode"]) == (["--shards", "8"], "shipped", "given")
    assert "spark.executor.memory=8g" in made["submit"]
    assert "spark.master=local[" in made["submit"]
    assert made["own"] == []
    usage = described["runtimeInfo"]["approximateUsage"]
    # A driver of 4 cores with 9600m and 40 % overhead, two executors with 8g, for the least of a minute.
    dcu = 4 * 0.6 + 9600 * 1.4 / 1024 * 0.1 + 2 * (4 * 0.6 + 8 * 1.4 * 0.1)
    assert abs(int(usage["milliDcuSeconds"]) - dcu * 60_000) <= 1
    entries = boxed.logged('resource.labels.batch_id="first" AND logName:"dataproc.googleapis.com%2Foutput"')
    assert [entry["jsonPayload"]["message"] for entry in entries] == ["working"]
    requests = boxed.cloud.requests.since(0)["requests"]
    wrote = [
        request
        for request in requests
        if request["method_id"] == "storage.objects.insert" and "172.31" in request["address"]
    ]
    assert {item["principal"] for item in wrote} == {spark}


def test_a_batch_whose_main_file_fails_has_its_exit_status(boxed: Boxed, spark: str) -> None:
    started = boxed.answer("POST", f"{BATCHES}?batchId=fails", batch(spark, "fails.py"))
    operation = boxed.done("dataproc.googleapis.com/v1", started)
    described = boxed.answer("GET", f"{BATCHES}/fails")
    assert (described["state"], "error" in operation) == ("FAILED", True)
    assert described["stateMessage"] == "Job failed with exit status 1:\nreading\nno such input"


def test_a_batch_is_killed_when_its_time_to_live_is_over(boxed: Boxed, spark: str) -> None:
    started = boxed.answer("POST", f"{BATCHES}?batchId=lasts", batch(spark, "sleeps.py", ttl="600s"))
    running(boxed, "lasts")
    boxed.call(boxed.cloud.world.clock.jump(600))
    boxed.done("dataproc.googleapis.com/v1", started)
    described = boxed.answer("GET", f"{BATCHES}/lasts")
    assert (described["state"], "time to live of 600 s" in described["stateMessage"]) == ("CANCELLED", True)


def test_cancelling_the_operation_kills_the_batch(boxed: Boxed, spark: str) -> None:
    started = boxed.answer("POST", f"{BATCHES}?batchId=stops", batch(spark, "sleeps.py"))
    running(boxed, "stops")
    boxed.answer("POST", f"dataproc.googleapis.com/v1/{started['name']}:cancel", {})
    assert boxed.answer("GET", f"{BATCHES}/stops")["state"] == "CANCELLED"
    assert not list((boxed.cloud._config.directory / "sandboxes").iterdir())
    boxed.answer("DELETE", f"{BATCHES}/stops")
    assert boxed.send("GET", f"{BATCHES}/stops").status == 404


@pytest.mark.parametrize(
    ("main", "role", "reason"),
    [
        ("job.py", None, "lacks dataproc.batches.sparkApplicationWrite; roles/dataproc.worker has"),
        ("none.py", "roles/dataproc.worker", "could not fetch gs://raw/none.py: 404"),
        ("job.py", "roles/dataproc.serverlessNode", "storage.objects.get"),
    ],
)
def test_what_the_account_lacks_is_named_in_the_message(
    boxed: Boxed, main: str, role: str | None, reason: str
) -> None:
    name = f"lacks-{(role or 'all').rpartition('.')[2].lower()}"
    email = boxed.account(name[:28], *([role] if role else []))
    started = boxed.answer("POST", f"{BATCHES}?batchId={name}", batch(email, main))
    boxed.done("dataproc.googleapis.com/v1", started)
    described = boxed.answer("GET", f"{BATCHES}/{name}")
    assert (described["state"], reason in described["stateMessage"]) == ("FAILED", True), described
    assert [item["state"] for item in described["stateHistory"]] == ["PENDING"]


def test_a_request_that_is_sent_again_starts_nothing_and_an_id_in_use_is_a_409(
    boxed: Boxed, spark: str
) -> None:
    url = f"{BATCHES}?batchId=twice&requestId=7f2c"
    first, second = (boxed.answer("POST", url, batch(spark, "fails.py")) for _ in range(2))
    assert first["name"] == second["name"]
    other = boxed.send("POST", f"{BATCHES}?batchId=twice&requestId=8a1d", batch(spark, "fails.py"))
    assert other.status == 409
    boxed.done("dataproc.googleapis.com/v1", first)
    listed = [batch["name"] for batch in boxed.answer("GET", BATCHES)["batches"]]
    assert listed.count(f"{L}/batches/twice") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"runtimeConfig": {"version": "2.1"}}, "version '2.1' is not supported"),
        ({"runtimeConfig": {"version": "2.2"}}, "not supported since 2026-09-30"),
        ({"runtimeConfig": {"properties": {"spark.executor.cores": "2"}}}, "must be one of (4, 8, 16)"),
        ({"runtimeConfig": {"properties": {"spark.driver.memory": "64g"}}}, "from 1024m to 7424m"),
        ({"runtimeConfig": {"properties": {"spark.dataproc.driver.disk.size": "100g"}}}, "at least 250g"),
        (
            {"runtimeConfig": {"properties": {"spark.dynamicAllocation.maxExecutors": "9000"}}},
            "from 2 to 2000",
        ),
        ({"runtimeConfig": {"properties": {"spark.master": "local"}}}, "can't be set"),
        ({"pysparkBatch": {"mainPythonFileUri": "gs://raw/job"}}, "must be a .py file"),
        ({"environmentConfig": {"executionConfig": {"ttl": "60s"}}}, "ttl must be from 600s"),
        ({"environmentConfig": {"executionConfig": {"subnetworkUri": "closed"}}}, "Private Google Access"),
        ({"environmentConfig": {"executionConfig": {"stagingBucket": "gs://raw"}}}, "without gs://"),
    ],
)
def test_a_batch_that_breaks_a_rule_of_the_service_is_refused(
    boxed: Boxed, spark: str, change: Any, reason: str
) -> None:
    body = batch(spark)
    for field, inner in change.items():
        merged = {**body[field], **inner}
        if "executionConfig" in inner:
            merged = {"executionConfig": {**body[field]["executionConfig"], **inner["executionConfig"]}}
        body[field] = merged
    reply = boxed.send("POST", f"{BATCHES}?batchId=breaks-a-rule", body)
    assert (reply.status, reason in reply.body.decode()) == (400, True), reply.body


def test_a_quota_that_a_scenario_takes_away_fails_the_batch(boxed: Boxed, spark: str) -> None:
    message = "Insufficient 'CPUS' quota. Requested 12.0, available 8.0."
    rule = boxed.cloud.faults.add(
        {
            "match": {"method": "dataproc.projects.locations.batches.create"},
            "times": 1,
            "what": {"operation_error": {"code": "RESOURCE_EXHAUSTED", "message": message}},
        }
    )
    started = boxed.answer("POST", f"{BATCHES}?batchId=no-quota", batch(spark))
    boxed.done("dataproc.googleapis.com/v1", started)
    described = boxed.answer("GET", f"{BATCHES}/no-quota")
    assert (described["state"], described["stateMessage"]) == ("FAILED", message)
    assert boxed.cloud.faults.lift(rule) == 1
