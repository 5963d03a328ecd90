"""Each feature of docs/internals/seed-features.md names its proof, which exists; see also test_pages.py."""

import re
from collections.abc import Callable, Iterable, Mapping

import pytest

from infra.catalog.book import BOOK
from infra.core.environment import required_services
from infra.core.outputs import declared
from infra.engine import registry
from infra.layers.monitoring import alerts, metrics
from infra.layers.monitoring.dashboards import dashboards
from infra.policy import RULES
from infra.settings.schema import Settings
from rehearsal.scenario.scenario import find
from tests.infra.declared import EVERYTHING
from tests.infra.recording import BASE, parsed
from tools.blocks import ROOT

PAGE = (ROOT / "docs" / "internals" / "seed-features.md").read_text(encoding="utf-8")
ROWS = [
    row.strip("| ").split(" | ") for row in re.findall(r"^\| (?!---).*(?<!shown by) \|$", PAGE, re.MULTILINE)
]
MARK = re.compile(
    "`(setting|command|output|alert|metric|dashboard|rule|price|service|scenario|test|file) ([^`]+)`"
)
MARKS = sorted({mark for row in ROWS for mark in MARK.findall(row[-1])})
IMAGE = f"us-east5-docker.pkg.dev/p/tpu/bundle@sha256:{'0' * 64}"


def everything(train: str) -> Settings:
    values = {**BASE, **EVERYTHING, "pipeline:train": train}
    if train == "vertex":
        del values["pipeline:trainZone"]
        values["pipeline:trainImage"] = IMAGE
    return parsed(values)


NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "output": lambda: (
        f"{layer.name} {out.key}" for layer in registry.layers() for out in declared(layer.outputs).values()
    ),
    "alert": lambda: alerts.of(registry.layers()),
    "metric": lambda: (metric.name for metric in metrics.of(registry.layers())),
    "dashboard": lambda: dashboards(everything("fleet")),
    "rule": lambda: (rule.id for rule in RULES),
    "price": lambda: BOOK.entries,
    "service": lambda: {
        service for train in ("fleet", "vertex") for service in required_services(everything(train))
    },
}


def test_every_row_names_what_shows_it_or_a_reason_why_not() -> None:
    assert len(ROWS) >= 80
    assert [row for row in ROWS if len(row) != 3 or not MARK.search(row[-1])] == []
    assert [row for row in ROWS if MARK.sub("", row[-1]).strip(" ,")] == [], "nothing but marks"
    assert all(len(row[1].split()) >= 6 for row in ROWS if row[1].startswith("not done"))


@pytest.mark.parametrize("kind", NAMES)
def test_named_things_exist(kind: str) -> None:
    named = {name for result, name in MARKS if result == kind}
    assert named
    assert named - set(NAMES[kind]()) == set()


def test_named_files_exist_and_named_scenarios_hold_their_steps() -> None:
    for kind, name in MARKS:
        scenario, _, text = name.partition(": ")
        assert kind != "file" or (ROOT / name).is_file(), name
        assert kind != "scenario" or (text and text in find(scenario).read_text("utf-8")), name


def test_the_page_counts_the_alerts() -> None:
    assert {int(number) for number in re.findall(r"(\d+) alerts", PAGE)} == {
        len(alerts.of(registry.layers()))
    }
