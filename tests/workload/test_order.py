"""The order of the data is a permutation an epoch, and nothing but seed and slot decide it."""

from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import SingleDeviceSharding

from workload.data.loader import Loader
from workload.data.order import Order
from workload.data.prepare import prepare
from workload.data.tokens import Dataset


@given(examples=st.integers(1, 3000), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(examples: int, seed: int, epoch: int) -> None:
    epoch_of = Order(examples, seed).at(range(epoch * examples, (epoch + 1) * examples))
    assert sorted(epoch_of.tolist()) == list(range(examples))


@given(
    examples=st.integers(1, 10**12),
    seed=st.integers(0, 2**31 - 1),
    first=st.integers(0, 10**15),
    count=st.integers(1, 64),
)
def test_a_slot_does_not_depend_on_what_else_is_asked(
    examples: int, seed: int, first: int, count: int
) -> None:
    together = Order(examples, seed).at(range(first, first + count))
    alone = [Order(examples, seed).at(range(slot, slot + 1))[0] for slot in range(first, first + count)]
    assert together.tolist() == alone
    assert together.min() >= 0
    assert together.max() < examples


def test_epochs_and_seeds_differ() -> None:
    order = Order(1000, 0)
    first, second = order.at(range(1000)), order.at(range(1000, 2000))
    other_seed = Order(1000, 1).at(range(1000))
    for item, two in [(first, second), (first, other_seed), (first, np.arange(1000))]:
        # Two random orders of 1000 agree in about one place.
        assert np.count_nonzero(item == two) < 10


def test_the_order_is_the_one_that_runs_were_begun_with() -> None:
    """A change here breaks every run that is resumed across it: give such a change a new name."""
    assert Order(1000, 7).at(range(5)).tolist() == [51, 226, 596, 864, 821]
    assert Order(1000, 7).at(range(1000, 1003)).tolist() == [545, 577, 292]


def test_nothing_to_order_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Order(0, 0)


def test_the_loader_gives_each_step_its_own_slots_in_order(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(32 + n * n % 91 for n in range(201)))
    prepare([tmp_path / "text"], tmp_path / "tokens")
    dataset = Dataset(tmp_path / "tokens", sequence_length=8)
    with closing(Loader(dataset, 4, 3, SingleDeviceSharding(jax.devices()[0]))) as loader:
        for step in (1, 2, 7, 8):  # 25 examples: the seventh step crosses an epoch
            batch = loader.batch(step)
            expected = dataset.read(Order(len(dataset), 3).at(range(4 * (step - 1), 4 * step)))
            assert batch["tokens_BxL1"].tolist() == expected.tolist()
            assert batch["segments_BxL1"].tolist() == dataset.segments(expected).tolist()
