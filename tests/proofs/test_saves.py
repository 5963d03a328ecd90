"""The short form of `make prove`: a save killed around some of its storage requests."""

from collections.abc import Iterator

import pytest

from tests.proofs.killing import Proof

pytestmark = pytest.mark.slow
TAKEN = (0.0, 0.25, 0.5)  # of the way through its requests; `make prove` takes each

STEP_1_IS_RETIRED = "%2F1%2Fcommit_success"


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    made = Proof(tmp_path_factory.mktemp("proof"))
    yield made
    made.close()


def test_a_save_killed_at_a_request_leaves_its_step_or_the_one_before(proof: Proof) -> None:
    requests = proof.requests()
    assert len(requests) > 30
    # The last ones retire step 1; on a busy machine a save sends fewer.
    result = [
        (number, before, *proof.case(number, before))
        for number in (1 + int(part * len(requests)) for part in TAKEN)
        for before in (True, False)
    ]
    assert {step for *_, step in result} <= {1, 2}
    assert len(result) == 6
    first = result[0]
    assert first[3] == 1, "killed before its first request, a save can't have made step 2"


def test_a_save_killed_while_the_old_step_is_retired_keeps_its_own(proof: Proof) -> None:
    assert sum(STEP_1_IS_RETIRED in request for request in proof.requests()) == 1
    for number in (4, 7):
        request, step = proof.case(number, before=True, since=STEP_1_IS_RETIRED)
        assert step == 2, request
