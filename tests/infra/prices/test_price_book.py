"""The price book: what it refuses to be, and how it says how far it can be trusted."""

import re
from datetime import date

import pytest

from infra.catalog import CATALOG
from infra.catalog.book import BOOK, BookError, Entry, load

TODAY = date(2026, 11, 24)
GOOD = """
[sources.page]
page = "https://cloud.google.com/a/pricing"
read = "2026-11-01"

[entries.thing]
service = "A"
what = "a thing"
unit = "GiB-month"
regions = { us-east5 = 0.5 }
likewise = ["us-east1"]
source = "page"
checked = true
"""


def test_the_books_own_text_is_the_one_that_is_tested_against() -> None:
    thing = load(GOOD, CATALOG)["thing"]
    assert thing.price("us-east5").dollars == 0.5
    assert thing.price("us-east5").checked


@pytest.mark.parametrize("entry", BOOK.entries.values(), ids=lambda item: item.id)
def test_every_price_says_where_it_is_from_and_a_checked_one_when_it_was_read(entry: Entry) -> None:
    assert re.match(r"https://cloud\.google\.com/|Cloud Billing Catalog", entry.source.page)
    assert bool(entry.source.read) or not entry.checked
    assert entry.known or not entry.checked


def test_the_book_covers_what_the_stacks_declare() -> None:
    services = {entry.service for entry in BOOK.entries.values()}
    assert services >= {
        "Cloud TPU", "Compute Engine", "Kubernetes Engine", "Cloud Storage", "Cloud NAT", "VPC",
        "Cloud Logging", "Cloud Monitoring", "Cloud KMS", "Secret Manager", "Artifact Registry",
        "Vertex AI TensorBoard", "Cloud Run functions", "Cloud Scheduler",
        "Managed Service for Apache Spark (Dataproc)",
    }  # fmt: skip


def test_chips_have_the_catalogs_prices() -> None:
    assert BOOK["tpu.spot"].price("us-east5").dollars == CATALOG.price("us-east5-b").spot
    assert BOOK["tpu.spot"].price("us-east1").dollars is None
    assert BOOK["tpu.on-demand"].source.read == CATALOG.prices_read


def test_a_region_that_nobody_read_is_unverified_or_unknown() -> None:
    thing = load(GOOD, CATALOG)["thing"]
    assert (thing.price("us-east1").dollars, thing.price("us-east1").checked) == (0.5, False)
    assert thing.price("mars-east1").dollars is None
    assert BOOK["vertex.training"].price("us-east5").dollars is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('read = "2026-11-01"', 'read = "2026-13-01"', 'sources.page.read = "2026-13-01"'),
        ('read = "2026-11-01"', 'read = "2026-02-30"', 'sources.page.read = "2026-02-30"'),
        ('read = "2026-11-01"', "", "entries.thing.checked = true"),
        ('page = "https://cloud.google.com/a/pricing"', "", "sources.page.page = nothing"),
        ('source = "page"', 'source = "pag"', 'entries.thing.source = "pag"'),
        ('unit = "GiB-month"', "", "entries.thing = no unit"),
        ('unit = "GiB-month"', 'unit = "GiB-month"\nsku = "A"', "entries.thing = sku"),
        ("us-east5 = 0.5", "us-east5 = 0", "entries.thing.us-east5 = 0"),
        ("us-east5 = 0.5", "us-east5 = true", "entries.thing.us-east5 = True"),
        ("us-east5 = 0.5", 'us-east5 = "0.5"', "entries.thing.us-east5 = '0.5'"),
        ("regions = { us-east5 = 0.5 }", "everywhere = -1", "entries.thing.everywhere = -1"),
        ("regions = { us-east5 = 0.5 }", "", "entries.thing.likewise = no regions"),
        ('source = "page"', 'source = "page"\neverywhere = 1.0', "= everywhere and regions"),
        ("[entries.thing]", "[entries.thing", "isn't TOML"),
    ],
)
def test_what_is_wrong_with_a_book_is_named(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(BookError) as caught:
        load(GOOD.replace(old, new), CATALOG)
    assert message in str(caught.value)


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(BookError, match=r"4 problems in infra/catalog/prices\.toml"):
        load(GOOD.replace('"page"', '"no"').replace("0.5", "-1").replace("2026-11-01", "now"), CATALOG)


def test_a_price_is_old_after_ninety_days() -> None:
    book = load(GOOD, CATALOG)
    chips = ["tpu.on-demand", "tpu.spot", "tpu.flex-start"]
    assert [item.id for item in book.stale(date(2026, 10, 30))] == [], "August has 31 days"
    assert [item.id for item in book.stale(date(2026, 10, 31))] == chips
    assert [item.id for item in book.stale(date(2027, 1, 30))] == chips
    assert [item.id for item in book.stale(date(2027, 1, 31))] == [*chips, "thing"]


def test_the_summary_counts_what_is_old_unverified_and_unknown() -> None:
    unread = GOOD.replace("checked = true", "checked = false").replace("2026-11-01", "2026-11-20")
    unknown = '\n[entries.b]\nservice = "B"\nwhat = "b"\nunit = "GiB"\nsource = "page"\nchecked = false\n'
    assert load(GOOD, CATALOG).summary(date(2026, 9, 1)) == "4 prices"
    assert load(unread + unknown, CATALOG).summary(TODAY) == (
        "5 prices, 3 read more than 90 days ago (first 2026-08), 1 unverified, 1 unknown"
    )
