"""Proof before a living node is deleted: its guest attributes or Google's health, never an object alone."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Claim
from fleet.proof import Attested, objection

NOW_S, HEARTBEAT_TIMEOUT_S = 1e6, 1800.0
CLAIMS = [Claim.BOOT_FAILED, Claim.WORK_FAILED, Claim.SILENT, Claim.DONE, Claim.FINAL]
OLD_S = NOW_S - 4000


def why(claim: Claim, *workers: Attested, health: str = "HEALTHY") -> str:
    return objection(claim, workers, health, NOW_S, HEARTBEAT_TIMEOUT_S)


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_object_in_the_bucket_alone_proves_nothing(claim: Claim) -> None:
    """An impostor's: all hosts run as one account."""
    assert "nothing but an object in the bucket says so" in why(claim)
    assert why(claim, Attested("ready", NOW_S - 900, "running", NOW_S - 300))


@pytest.mark.parametrize(
    ("claim", "worker"),
    [
        (Claim.BOOT_FAILED, Attested("failed", NOW_S - 9)),
        (Claim.WORK_FAILED, Attested("ready", OLD_S, "failed", NOW_S - 9)),
        (Claim.SILENT, Attested("ready", OLD_S, "running", OLD_S)),
    ],
)
def test_a_workers_own_guest_attribute_proves_that_claim_and_no_other(claim: Claim, worker: Attested) -> None:
    assert why(claim, Attested("ready", OLD_S), worker) == ""
    for other in {*CLAIMS} - {claim}:
        assert why(other, worker)


def test_work_is_done_once_every_worker_attests_it_and_failed_for_good_once_one_does() -> None:
    done, failed = Attested(job="done", job_s=NOW_S - 9), Attested(job="failed", job_s=NOW_S - 9)
    final = replace(failed, final=True)
    assert why(Claim.DONE, done, done) == ""
    for other in (failed, Attested("ready"), Attested(job="running", job_s=OLD_S)):
        assert why(Claim.DONE, done, other)
    assert why(Claim.FINAL, done, final) == ""
    assert why(Claim.FINAL, failed), "it is started again"
    assert why(Claim.FINAL, replace(done, final=True))
    assert "its job reported" in why(Claim.FINAL, final, Attested(job="running", job_s=NOW_S - 9))


@pytest.mark.parametrize("health", ["TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE"])
def test_googles_health_proves_silence_and_nothing_else(health: str) -> None:
    assert why(Claim.SILENT, health=health) == ""
    assert why(Claim.BOOT_FAILED, health=health)
    for fine in ("", "HEALTHY", "HEALTH_UNSPECIFIED", "TOMORROW"):
        assert why(Claim.SILENT, health=fine)


def test_whose_job_reports_is_not_replaced_whatever_else_is_attested() -> None:
    boot = Attested("failed", NOW_S - 1)
    for age_s, claim in product((0.0, 60.0, 119.0, 120.0), CLAIMS):
        job = Attested("failed", NOW_S - 1, "running", NOW_S - age_s)
        reported = why(claim, boot, job, replace(job, job_s=OLD_S), health="TIMEOUT")
        assert ("its job reported" in reported) == (age_s < 120)


def test_workers_that_never_spoke_have_not_fallen_silent() -> None:
    assert why(Claim.SILENT, Attested())
    assert why(Claim.SILENT, Attested("ready", NOW_S - HEARTBEAT_TIMEOUT_S))
    assert why(Claim.SILENT, Attested("booting", NOW_S - 60), Attested("ready", OLD_S))


@given(
    st.lists(
        st.builds(
            Attested,
            st.sampled_from(["", "booting", "ready", "rerun-failed"]),
            st.floats(0, 2e6),
            st.sampled_from(["", "running", "done"]),
            st.floats(0, 2e6),
        )
    ),
    st.sampled_from(list(Claim)),
)
def test_nothing_but_failure_silence_or_an_end_is_ever_proof(workers: list[Attested], claim: Claim) -> None:
    if not why(claim, *workers) and claim is Claim.DONE:
        assert {worker.job for worker in workers} == {"done"}
    elif not why(claim, *workers):
        assert claim is Claim.SILENT
        assert 0 < max(max(worker.boot_s, worker.job_s) for worker in workers) < NOW_S - HEARTBEAT_TIMEOUT_S
