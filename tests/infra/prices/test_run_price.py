"""Predicted price of a run, and its limit; Spark batches by Google's own figures."""

import pytest

from infra.catalog.book import BOOK
from infra.errors import InfraError
from infra.layers.pipeline.spark_price import PREMIUM, STANDARD, SparkNode, predicted
from infra.prices.run import RunPrice, of_hours, within_limit

LIMIT = "fleet:dollarsPerRun"
IOWA = "us-central1"


def test_a_prediction_is_price_times_hours() -> None:
    price = of_hours(22.4528, 2.5)
    assert price.dollars == pytest.approx(56.132)
    assert str(price) == "$56.13 ($22.45 an hour, 2.5 h)"


@pytest.mark.parametrize(
    ("price", "message"),
    [
        (of_hours(22.0, None), "nothing says how long it takes\n    fix: --hours N, or take"),
        (of_hours(None, 2.0), "no price of its slices is known\n    fix: slices of a known price"),
        (
            of_hours(50.01, 2.0),
            r"would cost \$100.02 \(\$50.01 an hour, 2 h\), fleet:dollarsPerRun allows \$100",
        ),
    ],
)
def test_above_a_limit_or_unknown_under_one_a_run_is_refused(price: RunPrice, message: str) -> None:
    with pytest.raises(InfraError, match=message):
        within_limit(price, 100, LIMIT)
    within_limit(price, None, LIMIT)


def test_at_the_limit_it_goes() -> None:
    within_limit(of_hours(50.0, 2.0), 100, LIMIT)


def test_the_actual_price_stands_beside_the_predicted_one() -> None:
    assert of_hours(10.0, 2.0).beside(13.456) == {"predicted_dollars": 20.0, "dollars": 13.46}
    assert of_hours(10.0, None).beside(None) == {"predicted_dollars": None, "dollars": None}


def test_the_default_batch_is_the_twelve_dcus_of_googles_page() -> None:
    """4 vCPUs and 16 GB are 4 DCUs; a driver and two executors for an hour are $0.72 beside their disks."""
    node = SparkNode(disk_gib=0)
    assert node.dcu == pytest.approx(4.0)
    price = predicted(node, node, 2, 1.0, STANDARD, IOWA)
    assert price.dollars == pytest.approx(0.72)
    assert price.checked
    assert predicted(node, node, 50, 1.0, STANDARD, IOWA).dollars == pytest.approx(12.24)
    assert predicted(node, node, 2, 1.0, PREMIUM, IOWA).dollars == pytest.approx(12 * 0.089)


def test_memory_beyond_eight_gb_a_vcpu_counts_twice() -> None:
    assert SparkNode(cores=4, memory_gb=32).dcu == pytest.approx(2.4 + 3.2)
    assert SparkNode(cores=4, memory_gb=40).dcu == pytest.approx(2.4 + 3.2 + 1.6)
    assert SparkNode(cores=8, memory_gb=40).dcu == pytest.approx(4.8 + 4.0)


def test_a_batch_is_billed_for_a_minute_at_least() -> None:
    node = SparkNode()
    second, minute = (predicted(node, node, 2, s / 3600, STANDARD, IOWA) for s in (1, 60))
    assert second.dollars == pytest.approx(minute.dollars)
    assert minute.dollars == pytest.approx(12 / 60 * 0.06 + 900 / 60 * 0.000054795)


def test_a_batch_is_priced_as_a_public_bill_was() -> None:
    """0.4093 DCU-hours and 25.58 GB-hours of shuffle storage were $0.026 on 2026-09-28."""
    node = SparkNode(cores=1, memory_gb=0.0, disk_gib=25.58 * 0.6 / 0.4093)
    price = predicted(node, node, 0, 0.4093 / 0.6, STANDARD, IOWA)
    assert price.dollars == pytest.approx(0.026, abs=0.0005)
    assert "0.41 DCU-hours and 26 GiB-hours" in price.why


def test_an_unknown_price_of_a_batch_is_unknown_and_says_which() -> None:
    node = SparkNode()
    assert BOOK["spark.shuffle.premium"].price(IOWA).dollars is None
    price = predicted(node, node, 2, 1.0, PREMIUM, IOWA)
    assert price.dollars is None
    assert "shuffle storage, premium tier, in us-central1" in price.why
    assert "spark.shuffle.premium" in price.fix
    with pytest.raises(InfraError, match="this one's price is unknown"):
        within_limit(price, 5, "pipeline:dollarsPerRun")
    elsewhere = predicted(node, node, 2, 1.0, STANDARD, "us-east5")
    assert elsewhere.dollars is not None
    assert not elsewhere.checked, "the price of that region was never read"
    assert str(elsewhere).startswith("$~")
