"""The short form of `make prove`: an extraction killed around some of its storage requests."""

from collections.abc import Iterator

import pytest

from tests.proofs.extracting import Extractions
from tests.proofs.killing import Proof

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def extractions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extractions]:
    proof = Proof(tmp_path_factory.mktemp("proof"))
    yield Extractions(proof)
    proof.close()


def test_an_extraction_killed_at_a_request_goes_on_to_the_same_bytes(extractions: Extractions) -> None:
    assert extractions.shards >= 4
    creates = [n for n, request in enumerate(extractions.requests, 1) if request.startswith("POST")]
    assert len(creates) > extractions.shards
    middle = creates[len(creates) // 2]
    for before in (True, False):
        assert extractions.at_request(middle, before).startswith("POST")


def test_an_extraction_killed_at_an_instant_goes_on_to_the_same_bytes(extractions: Extractions) -> None:
    killed = [extractions.at_instant(number, after_s) for number, after_s in enumerate((0.3, 0.6, 1.2))]
    assert any(killed)
