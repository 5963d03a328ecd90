"""Quotas as Service Usage lists them, compared with what layers use at once."""

from __future__ import annotations

from typing import Any, cast

from google_facts import builds
from infra.doctor.finding import MISSING, OK
from infra.doctor.quotas import UNLIMITED, check, limit_of, listed
from infra.google.client import Client
from infra.google.quotas import Quota, chips, gke_chips
from infra.layers.gke.layer import LAYER
from infra.layers.pipeline.layer import LAYER as PIPELINE
from rehearsal.cloud.services.tpu.quotas import Quotas
from tests.infra.recording import BASE, parsed

FAMILY, PREEMPTIBLE = "TPUS-PER-TPU-FAMILY-per-project-region", "PREEMPTIBLE-TPU-V6E-per-project-region"


class Project:
    """The client of a project that has quotas and nothing else."""

    project = "my-project"

    def __init__(self, **limits: int) -> None:
        self.quotas = Quotas()
        for name, limit in limits.items():
            self.quotas.set(name.replace("_", "-"), "us-east5", limit)

    def items(self, url: str, *_: object) -> list[dict[str, Any]]:
        return self.quotas.metrics("projects/1", url.split("/services/")[1].partition("/")[0])


def test_chips_of_gke_have_quotas_of_their_own() -> None:
    pools = [
        {"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b", "count": 2},
        {"name": "spot", "acceleratorType": "v6e-8", "zone": "us-east5-a", "spot": True},
        {"name": "flex", "acceleratorType": "v6e-4", "zone": "us-east5-b", "flexStart": True},
        {"name": "ours", "acceleratorType": "v6e-256", "zone": "us-east5-b", "reservation": "ours"},
    ]
    values = {**BASE, "gke:tpuPools": pools, "gke:podsRange": "172.16.0.0/16"}
    uses = list(LAYER.hooks.quotas(parsed(values)))

    def findings(**limits: int) -> list[Any]:
        google = cast(Client, Project(**{key.replace("-", "_"): limit for key, limit in limits.items()}))
        return list(check(google, [], uses, "quota"))

    assert [item.state for item in findings()] == [OK, OK]
    family, preemptible = findings(**{FAMILY: 0, PREEMPTIBLE: 11})
    assert (family.what, family.state, family.detail) == (
        "quota us-east5", MISSING,
        f"{FAMILY}: all pools of gke have 32 on-demand chips of GKE, allowed are 0",
    )  # fmt: skip
    assert "--dimensions=region=us-east5,tpu_family=CT6E --preferred-value=32" in family.fix
    assert (preemptible.state, preemptible.detail) == (
        MISSING,
        f"{PREEMPTIBLE}: all pools of gke have 12 spot and flex-start chips of GKE, allowed are 11",
    )


def test_the_limit_of_a_family_counts_before_that_of_all() -> None:
    buckets = [
        {"effectiveLimit": "512"},
        {"effectiveLimit": "64", "dimensions": {"tpu_family": "CT6E"}},
        {"effectiveLimit": "32", "dimensions": {"region": "us-east5", "tpu_family": "CT6E"}},
        {"effectiveLimit": "96", "dimensions": {"region": "us-east5", "tpu_family": "CT5LP"}},
    ]
    limit = {"unit": "1/{project}/{region}/{tpu_family}", "quotaBuckets": buckets}
    rate = {"unit": "1/min/{project}/{region}", "quotaBuckets": [{"effectiveLimit": "1"}]}
    current = gke_chips("us-east5", revocable=False)
    limits = listed([{"metric": current.metric, "consumerQuotaLimits": [limit, rate]}])
    assert limit_of(current, limits) == 32
    assert limit_of(gke_chips("us-east1", revocable=False), limits) == 64


def test_limits_that_google_leaves_out_or_does_not_know() -> None:
    def of(quota: Quota, *buckets: dict[str, Any]) -> int | None:
        limit = {"unit": "1/{project}/{zone}", "quotaBuckets": [*buckets]}
        return limit_of(quota, listed([{"metric": current.metric, "consumerQuotaLimits": [limit]}]))

    current = chips("zone", "us-east5-b", spot=False)
    assert of(current) is None
    assert of(current, {"effectiveLimit": "8"}, {"dimensions": {"zone": "us-east5-b"}}) == 0
    assert of(current, {"effectiveLimit": "8"}, {"dimensions": {"zone": "us-east5-a"}}) == 8
    assert of(current, {"effectiveLimit": "-1"}) == UNLIMITED
    assert of(chips("zone", "us-east5-b", spot=True), {"effectiveLimit": "8"}) is None


def test_a_region_in_which_a_project_may_not_build_is_told_with_those_in_which_it_may() -> None:
    values = {**BASE, "pipeline:rawBucketName": "my-project-raw"}
    uses = list(PIPELINE.hooks.quotas(parsed(values)))
    google = Project()
    assert {item.state for item in check(cast(Client, google), [], uses, "quota")} == {OK}
    google.quotas.set(builds.TITLE, "us-east5", 0)
    _, item = check(cast(Client, google), [], uses, "quota")
    assert (item.state, item.what) == (MISSING, "quota us-east5")
    assert item.detail.endswith("a build of the pipeline's function needs 1 CPUs, allowed are 0")
    assert "another storage:location; no project is restricted in" in item.fix
    assert "us-central1" in item.fix
