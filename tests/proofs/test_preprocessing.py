"""The short form of `make prove`: a few kills of a run that makes token files."""

import random
from pathlib import Path

import pytest

from tests.proofs.preprocessing import Preprocessing

pytestmark = pytest.mark.slow


def test_a_run_killed_at_random_instants_comes_to_the_same_bytes(tmp_path: Path) -> None:
    proof, draw = Preprocessing(tmp_path), random.Random(20261124)
    kills, number = 0, 0
    while kills < 3 and number < 8:
        kills += proof.disturbed(number, draw)
        number += 1
    assert kills >= 3, proof.counts
