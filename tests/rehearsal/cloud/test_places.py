"""A service that isn't in a region refuses requests there as if a permission were missing."""

import pytest
from cloud_front import PROJECT, CloudFront

from google_facts import regions
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.door import places

P = f"projects/{PROJECT}"


@pytest.mark.parametrize("region", [*regions.ABSENT["cloudscheduler"]])
def test_a_sweep_in_a_region_without_cloud_scheduler_is_refused(cloud: CloudFront, region: str) -> None:
    """The program once declared it in storage:location, us-east5 by default."""
    jobs = f"cloudscheduler.googleapis.com/v1/{P}/locations/{{}}/jobs"
    job = {"schedule": "* * * * *", "timeZone": "Etc/UTC", "httpTarget": {"uri": "https://a.run.app"}}
    refused = cloud.request("POST", jobs.format(region), job)
    assert (refused.status, refused.error) == (
        403,
        'The principal (user or service account) lacks IAM permission "cloudscheduler.jobs.create" for the '
        f'resource "{P}/locations/{region}" (or the resource may not exist).',
    )
    assert cloud.request("GET", jobs.format(region)).status == 403
    assert cloud.request("POST", jobs.format(regions.nearest("cloudscheduler", region)), job).status == 200


def test_every_way_to_name_a_place_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "ABSENT", {"dataproc": {"us-east5": "us-east4"}})
    for path in ({"parent": "projects/p/regions/us-east5"}, {"zone": "us-east5-b"}, {"region": "us-east5"}):
        call = Call("dataproc", "v1", "dataproc.x", path, {}, None, "", None)  # type: ignore[arg-type]
        with pytest.raises(ApiError, match=r"Permission denied on 'locations/us-east5"):
            places.require(call, "")
    elsewhere = Call("dataproc", "v1", "dataproc.x", {"zone": "us-east4-b"}, {}, None, "", None)  # type: ignore[arg-type]
    places.require(elsewhere, "")
