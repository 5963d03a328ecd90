"""A bucket that somebody else filled becomes the storage layer's: an emulated cloud, the real CLI."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.lab import BUCKET, SETTINGS, Lab
from tests.proofs.warm import Warm

pytestmark = [pytest.mark.prove, pytest.mark.slow]
API = "storage.googleapis.com/storage/v1/b"
WITHOUT_ASKING = ("--yes", "--skip-preview")
WEEK_S = 7 * 86400
UPDATE = f"gcloud storage buckets update gs://{BUCKET}"
ACCESS = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}
FIT: dict[str, Any] = {
    "location": "US-EAST5",
    "iamConfiguration": ACCESS,
    "versioning": {"enabled": True},
    "softDeletePolicy": {"retentionDurationSeconds": str(WEEK_S)},
    "labels": {"team": "vision"},
}


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    warm = Warm(tmp_path / "bin", tmp_path / "home", lab.environment)
    lab.environment["PATH"] = warm.path
    lab.settings.write_text(f"{SETTINGS}  storage:importBucket: true\n")
    yield lab
    warm.close()
    lab.close()


def make(lab: Lab, name: str = BUCKET, **more: Any) -> None:
    answer = lab.request("POST", API, {**FIT, "name": name, **more}, project=lab.cloud.world.project)
    assert answer.ok, answer.text


def write(lab: Lab, name: str, content: bytes) -> None:
    path = f"storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o"
    answer = lab.request("POST", path, content, uploadType="media", name=name)
    assert answer.ok, answer.text


def objects(lab: Lab) -> dict[tuple[str, str], bytes]:
    """Return the content of every generation."""
    listed = lab.request("GET", f"{API}/{BUCKET}/o", versions="true").json()["items"]
    return {
        (item["name"], item["generation"]): lab.request(
            "GET", f"{API}/{BUCKET}/o/{item['name']}", alt="media", generation=item["generation"]
        ).content
        for item in listed
    }


def changes(lab: Lab) -> list[str]:
    """Return what a plan shows of the bucket."""
    output = lab.tpu("plan", "dev", "storage")
    return re.findall(rf"^ *(\S+) +gcp:storage/bucket:Bucket +{BUCKET}(?: +(.*))?$", output, re.MULTILINE)


def test_it_keeps_what_it_holds_through_up_and_down(lab: Lab) -> None:
    make(lab)
    for name, content in (("weights", b"first"), ("weights", b"second"), ("tokens", b"text")):
        write(lab, name, content)
    held = objects(lab)
    assert sorted(held.values()) == [b"first", b"second", b"text"]

    # The first update writes no more than the labels of everything that the environment makes.
    (taken, _), (sign, keys) = changes(lab)
    assert (taken, sign) == ("=", "~")
    assert keys.startswith("[pulumiLabels.environment, pulumiLabels.goog-pulumi")
    lab.infra("up", "dev", "storage", *WITHOUT_ASKING)
    assert objects(lab) == held
    bucket = lab.request("GET", f"{API}/{BUCKET}").json()
    assert FIT["labels"].items() <= bucket["labels"].items()
    assert "lifecycle" not in bucket

    # The second one writes the lifecycle rules.
    ((sign, keys),) = changes(lab)
    assert (sign, "lifecycleRules" in keys) == ("~", True)
    lab.infra("up", "dev", "storage", *WITHOUT_ASKING)
    assert objects(lab) == held
    lab.pulumi("storage", "preview", "-s", "dev", "--refresh", "--expect-no-changes")

    output = lab.infra("down", "dev", "storage", *WITHOUT_ASKING, fine=False)
    assert f"protected: {BUCKET}" in output
    lab.pulumi("storage", "state", "unprotect", "-s", "dev", "--all", "--yes")
    lab.infra("down", "dev", "storage", *WITHOUT_ASKING)
    assert objects(lab) == held


def test_one_that_differs_is_refused_with_every_fix_before_anything_is_made(lab: Lab) -> None:
    make(lab, location="EUROPE-WEST4", iamConfiguration={}, versioning={"enabled": False})
    lab.cloud.world.directory[f"projects/_/buckets/{BUCKET}"]["projectNumber"] = "4711"
    before = lab.living()
    for refused in (
        lab.tpu("plan", "dev", "storage", fine=False),
        lab.infra("up", "dev", "storage", *WITHOUT_ASKING, fine=False),
    ):
        assert "5 problems in Pulumi.dev.yaml:" in refused
        for problem, fix in (
            ("of project number 4711", "gcloud projects list --filter=projectNumber=4711"),
            ("location europe-west4", "name a bucket there: a bucket never moves"),
            ("uniform access False", f"{UPDATE} --uniform-bucket-level-access"),
            ("public access prevention inherited", "--public-access-prevention"),
            ("versioning False", f"{UPDATE} --versioning"),
        ):
            line = rf"storage:bucketName = {BUCKET}, {problem}: .*\n +fix: .*{re.escape(fix)}"
            assert re.search(line, refused)
        assert "Traceback" not in refused
    assert lab.living() == before


def test_one_that_is_not_there_is_refused_with_the_setting_to_remove(lab: Lab) -> None:
    refused = lab.tpu("plan", "dev", "storage", fine=False)
    assert f"{BUCKET}, which can't be looked up: " in refused
    assert "fix: remove storage:importBucket\n" in refused
    assert "Traceback" not in refused
