"""Each feature of docs/seed-features.md: what is named to show it exists."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

from cli.__main__ import main
from infra.catalog.book import BOOK
from infra.core.environment import required_services
from infra.core.outputs import declared
from infra.engine import registry
from infra.engine.registry import section_classes
from infra.engine.settings import parse
from infra.layers.monitoring.alerts import ALERTS
from infra.layers.monitoring.dashboards import dashboards
from infra.layers.monitoring.metrics import METRICS
from infra.policy import RULES
from infra.settings.schema import keys_of, records
from infra.settings.sources import as_pulumi_hands_it_over
from rehearsal.scenario.scenario import find
from tests.infra.layers.test_all_layers import EVERYTHING
from tests.infra.recording import BASE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "seed-features.md").read_text(encoding="utf-8")
INPUTS = [
    "project_id",
    "region",
    "zone",
    "bucket_name_prefix",
    "tpu_accelerator_type",
    "enable_monitoring",
    "enable_preemptible_tpu",
    "dataproc_max_executors",
    "resource_labels",
    "dataproc_executor_memory",
    "dataproc_driver_memory",
    "storage_class",
    "bucket_versioning_enabled",
    "bucket_uniform_access",
    "alert_notification_channels",
    "tpu_network",
    "tpu_subnetwork",
    "tpu_name_prefix",
    "tpu_runtime_version",
    "custom_service_account_email",
    "dataproc_batch_id_prefix",
    "auto_delete_bucket",
    "firewall_source_ranges",
    "vertex_ai_training_display_name",
    "vertex_ai_container_image",
    "monitoring_dashboard_name",
]
OUTPUTS = ["tpu_name", "zone", "storage_bucket_name", "monitoring_dashboard_url", "useful_commands"]
"""What the recipe's README and main.tf read and print."""

SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
ROWS = [
    (section, *(cell.strip() for cell in line.strip("|").split(" | ")))
    for section, text in SECTIONS.items()
    for line in text.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
MARK = re.compile(
    "`(setting|command|output|alert|metric|dashboard|rule|price|service|scenario|test|file) ([^`]+)`"
)
MARKS = sorted({mark for row in ROWS for mark in MARK.findall(row[-1])})


def _settings() -> Iterable[str]:
    for layer, section in section_classes().items():
        yield from (f"{layer}:{key}" for key in keys_of(section))
        for key, record in records(section).items():
            yield from (f"{layer}:{key}[].{item}" for item in keys_of(record))


@cache
def _everything(train: str) -> tuple[str, ...]:
    image = f"us-east5-docker.pkg.dev/p/tpu/bundle@sha256:{'0' * 64}"
    more = {"pipeline:train": train, "pipeline:trainImage": image}
    return required_services(parse("dev", as_pulumi_hands_it_over({**BASE, **EVERYTHING, **more}, "f"), "f"))


def _tests() -> Iterable[str]:
    for path in (ROOT / "tests").rglob("test_*.py"):
        yield from re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)


NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "setting": _settings,
    "output": lambda: (
        f"{layer.name} {out.key}" for layer in registry.layers() for out in declared(layer.outputs).values()
    ),
    "alert": lambda: (alert.name for alert in ALERTS),
    "metric": lambda: (metric.name for metric in METRICS),
    "dashboard": lambda: dashboards(parse("dev", as_pulumi_hands_it_over({**BASE, **EVERYTHING}, "f"), "f")),
    "rule": lambda: (rule.id for rule in RULES),
    "price": lambda: BOOK.entries,
    "service": lambda: {*_everything("fleet"), *_everything("vertex")},
    "test": _tests,
}


def test_every_row_names_what_shows_it_or_says_why_not() -> None:
    headings = [row for row in ROWS if row[-1] == "shown by"]
    assert len(headings) == len(SECTIONS) >= 9
    rows = [row for row in ROWS if row[-1] != "shown by"]
    assert len(rows) >= 80
    assert [row for row in rows if len(row) != 4 or not MARK.search(row[-1])] == []
    assert [row for row in rows if MARK.sub("", row[-1]).strip(" ,")] == [], "nothing but marks"
    not_done = [row for row in rows if row[2].startswith("not done")]
    assert not_done
    assert all(len(row[2].partition(": ")[2].split()) >= 4 for row in not_done), "with a reason"


def test_every_input_and_output_of_the_recipe_has_a_row() -> None:
    for section, expected in (("Inputs", INPUTS), ("Outputs", OUTPUTS)):
        names = [name for row in ROWS if row[0] == section for name in re.findall(r"`(\w+)`", row[1])]
        assert sorted(names) == sorted(expected)


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_named_exists(kind: str) -> None:
    named = {name for result, name in MARKS if result == kind}
    assert named
    assert named - set(NAMES[kind]()) == set()


@pytest.mark.parametrize("command", [name for kind, name in MARKS if kind == "command"])
def test_a_command_that_is_named_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = command.split()
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        return
    assert program == "tpu"
    try:
        status = main([*words, "--help"])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 0
    assert words[-1] in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for kind, name in MARKS if kind == "scenario"])
def test_a_scenario_that_is_named_runs_that(name: str) -> None:
    scenario, _, text = name.partition(": ")
    assert text
    assert text in find(scenario).read_text("utf-8")


@pytest.mark.parametrize("name", [name for kind, name in MARKS if kind == "file"])
def test_a_file_that_is_named_exists(name: str) -> None:
    assert (ROOT / name).is_file()


def test_the_page_counts_the_alerts() -> None:
    assert {int(number) for number in re.findall(r"(\d+) alerts", PAGE)} == {len(ALERTS)}
