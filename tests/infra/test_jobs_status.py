"""How long a job held its pools, by the conditions of its workload and its JobSet."""

from typing import Any

import pytest

from cli.job import _price
from infra.jobs.client import Status, _status
from infra.run_price import of_hours

ADMITTED = {"type": "Admitted", "status": "True", "lastTransitionTime": "2026-11-24T10:00:00Z"}
COMPLETED = {"type": "Completed", "status": "True", "lastTransitionTime": "2026-11-24T11:30:00Z"}


def status(*, ended: dict[str, Any] | None = COMPLETED, admitted: dict[str, Any] | None = ADMITTED) -> Status:
    terminal = {"terminalState": ended["type"], "conditions": [ended]} if ended else {}
    jobset = {
        "metadata": {"name": "train", "creationTimestamp": "2026-11-24T09:00:00Z"},
        "spec": {"replicatedJobs": []},
        "status": terminal,
    }
    workload = {"status": {"conditions": [admitted] if admitted else []}}
    return _status(jobset, workload, [], {})


def test_a_job_that_ended_held_its_pools_from_its_admission() -> None:
    assert status().admitted_s == 5400
    assert status(ended={**COMPLETED, "type": "Failed"}).admitted_s == 5400


@pytest.mark.parametrize(
    "found",
    [status(ended=None), status(admitted=None), status(admitted={"type": "Admitted", "status": "True"})],
)
def test_what_nobody_stamped_is_unknown(found: Status) -> None:
    assert found.admitted_s is None
    assert _price(found, 40.0, None) == ""


def test_the_actual_price_of_a_job_stands_beside_the_predicted_one() -> None:
    assert _price(status(), 40.0, None) == "90 min since its admission, $60.00"
    assert _price(status(), 40.0, of_hours(40.0, 2.0)) == (
        "90 min since its admission, $60.00; predicted $80.00 ($40.00 an hour, 2 h)"
    )
    assert _price(status(), 40.0, of_hours(40.0, None)) == "90 min since its admission, $60.00"
    assert _price(status(), None, None) == ""
