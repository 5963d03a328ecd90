"""A job's price: predicted and refused before it is submitted, and by how long it held its pools."""

from typing import Any

import pytest

from cli import job as command
from cli.job import _price
from infra.errors import InfraError
from infra.layers.queue.jobs.client import Status, _status
from infra.prices.run import of_hours
from tests.cli.call import call
from tests.infra.layers.queue.test_submission import settings

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
    return _status(jobset, workload, [], {}, {})


def test_a_job_that_ended_held_its_pools_from_its_admission() -> None:
    assert status().admitted_s == 5400
    assert status(ended={**COMPLETED, "type": "Failed"}).admitted_s == 5400


@pytest.mark.parametrize(
    "job",
    [status(ended=None), status(admitted=None), status(admitted={"type": "Admitted", "status": "True"})],
)
def test_what_nobody_stamped_is_unknown(job: Status) -> None:
    assert job.admitted_s is None
    assert _price(job, 40.0, None) == ""


def test_the_actual_price_of_a_job_stands_beside_the_predicted_one() -> None:
    assert _price(status(), 40.0, None) == "90 min since its admission, $60.00"
    assert _price(status(), 40.0, of_hours(40.0, 2.0)) == (
        "90 min since its admission, $60.00; predicted $80.00 ($40.00 an hour, 2 h)"
    )
    assert _price(status(), 40.0, of_hours(40.0, None)) == "90 min since its admission, $60.00"
    assert _price(status(), None, None) == ""


SUBMIT = ["submit", "dev", "vision", "--slice", "v6e-16", "--detach"]


class Submitted:
    """Requests that reached the cluster."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def submit(self, item: Any) -> None:
        self.jobs.append(item.name)


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    result = Submitted()
    monkeypatch.setattr(command, "from_file", lambda _: settings(**{"fleet:dollarsPerRun": 100}))
    monkeypatch.setattr(command, "_jobs", lambda *_: result)
    return result


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "fleet:dollarsPerRun allows \\$100 a run, and this one's price is unknown"),
        (["--hours", "5"], "this run would cost \\$112.26"),
    ],
)
def test_a_job_above_the_limit_is_refused_before_the_cluster_is_asked(
    flags: list[str], message: str, cluster: Submitted
) -> None:
    with pytest.raises(InfraError, match=message):
        call(command.job, [*SUBMIT, *flags, "--", "train", "tiny.toml"])
    assert cluster.jobs == []


def test_a_job_below_the_limit_goes_with_its_price(
    cluster: Submitted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(command.job, [*SUBMIT, "--hours", "4", "--", "train", "tiny.toml"]) == 0
    assert cluster.jobs == ["train-tiny"]
    assert "predicted: $89.81 ($22.45 an hour, 4 h)" in capsys.readouterr().out
