"""Several sources are one sequence: by their weights, and a function of seed and slot alone."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workload.refused import check_refused
from workload.data.mixture import CYCLE, Mixture, shares
from workload.data.prepare import prepare
from workload.data.tokenizers import Bytes
from workload.data.tokens import Dataset
from workload.errors import ConfigError, DataError
from workload.train import config as configs

LENGTH = 7


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Three of different sizes; every token names its source."""
    root = tmp_path_factory.mktemp("sources")
    made = []
    for letter, size in (("a", 100), ("b", 350), ("c", 2000)):
        (root / f"{letter}.txt").write_text(letter * size)
        prepare([root / f"{letter}.txt"], root / letter)
        made.append(Dataset(root / letter, LENGTH))
    return made


def letters(mixture: Mixture, slots: range) -> str:
    return "".join(map(chr, mixture.at(slots, 0)["tokens_BxL1"][:, 0]))


def test_any_stretch_of_steps_has_the_shares_of_the_weights(sources: list[Dataset]) -> None:
    mixture = Mixture(sources, [1, 2, 5])
    assert len(mixture) == sum(map(len, sources))
    for begin in (0, 801, CYCLE - 400):
        counts = Counter(letters(mixture, range(begin, begin + 800)))
        assert all(
            abs(counts[letter] - 100 * weight) <= 2 for letter, weight in zip("abc", (1, 2, 5), strict=True)
        )


def test_an_example_is_a_function_of_seed_and_slot_alone(sources: list[Dataset]) -> None:
    mixture = Mixture(sources, [1, 2, 5])
    whole = mixture.at(range(CYCLE - 50, CYCLE + 50), 3)
    for begin in range(0, 100, 20):
        part = Mixture(sources, [1, 2, 5]).at(range(CYCLE - 50 + begin, CYCLE - 30 + begin), 3)
        for name, rows in part.items():
            assert (rows == whole[name][begin : begin + 20]).all()


def test_each_source_is_read_whole_before_any_of_it_again(sources: list[Dataset], tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(f"{n:07}" for n in range(50)) + "x")
    prepare([tmp_path / "t.txt"], tmp_path / "t")
    mixture = Mixture([sources[2], Dataset(tmp_path / "t", LENGTH)], [3, 1])
    tokens = mixture.at(range(2000), 0)["tokens_BxL1"][:, :LENGTH]
    own = [bytes(row.tolist()) for row in tokens if row[0] != ord("c")]
    for begin in range(0, 500, 50):
        assert len(set(own[begin : begin + 50])) == 50
    assert own[:50] != own[50:100], "in another order"


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_shares_fill_a_cycle_and_follow_the_weights(weights: list[float]) -> None:
    slots = shares(weights)
    assert sum(slots) == CYCLE
    exact = np.array(weights) / sum(weights) * CYCLE
    assert (np.abs(np.array(slots) - exact) < 1).all()


def test_sources_of_two_tokenizers_are_refused(sources: list[Dataset], tmp_path: Path) -> None:
    class Other(Bytes):
        name = identity = "other"

    (tmp_path / "t.txt").write_text("text of another tokenizer")
    prepare([tmp_path / "t.txt"], tmp_path / "t", Other())
    with pytest.raises(DataError, match=r"/t was made by other, and .*/a by bytes"):
        Mixture([sources[0], Dataset(tmp_path / "t", LENGTH)], [1, 1])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            '[{path="a"}, {path="b", weight=0}]',
            "data.sources[1].weight = 0.0: the weight of 'b' must be above 0",
        ),
        ('[{path="a"}, {path="b", weight=-1}]', "the weight of 'b' must be above 0"),
        ('[{path="a"}, {path="b", weight=1e-9}]', "the weight of 'b' must be at least 1/65,536 of the sum"),
        ('[{path="a"}, {path="a"}]', "data.sources[1].path = 'a': each folder once"),
        ("[{weight=1}]", "data.sources[0].path"),
    ],
)
def test_a_source_without_a_share_is_refused_by_its_name(settings: str, problem: str) -> None:
    check_refused([f"data.sources={settings}"], problem)


def test_a_path_beside_sources_is_refused_and_weights_are_part_of_a_runs_identity() -> None:
    with pytest.raises(ConfigError, match=r"data.path = 'x': must not be given beside data.sources"):
        configs.load("tiny.toml", ['data.sources=[{path="a"}]', "data.path=x"])
    plain, equal, weighted, moved = (
        configs.load("tiny.toml", more).identity()
        for more in (
            [],
            ['data.sources=[{path="a"}, {path="b"}]'],
            ['data.sources=[{path="a"}, {path="b", weight=2}]'],
            ['data.sources=[{path="c"}, {path="d"}]'],
        )
    )
    assert plain["data"] == {"sequence_length": 64}, "as before there were sources"
    assert equal != weighted
    assert equal == moved, "the manifests say what the folders hold"
