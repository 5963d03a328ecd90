"""The report, from the record of a run that really happened (`recorded.json`, the default scenario)."""

from __future__ import annotations

import copy
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from rehearsal.scenario.killing import Kind
from rehearsal.scenario.record import Boot, Check, KillRecord, Price, Record, Stage
from rehearsal.scenario.report import plots, write_picture, write_report
from rehearsal.scenario.report.facts import costs, headlines, minutes
from rehearsal.scenario.report.page import page
from rehearsal.scenario.report.table import print_report
from tests.views.pages import assert_stands_alone, pictures

RECORDED = Path(__file__).with_name("recorded.json")


@pytest.fixture(scope="module")
def recorded() -> Record:
    return Record.load(RECORDED)


@pytest.fixture
def record(recorded: Record) -> Record:
    return copy.deepcopy(recorded)


@pytest.fixture
def undrawn(record: Record) -> Record:
    """A record whose page has no pictures, which are what takes long."""
    record.boots, record.runs = [], []
    return record


def printed(record: Record) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    print_report(record, console)
    return console.export_text()


def test_the_page_stands_alone_with_three_pictures_that_are_the_same_again(record: Record) -> None:
    text = page(record)
    assert_stands_alone(text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(pictures(text)) == 3
    assert len(ids) == len(set(ids))
    again = plots.progress(record, record.runs[0])
    assert again
    assert again in text


def test_seven_cards_stand_in_one_row_of_a_wide_window(undrawn: Record) -> None:
    style = page(undrawn).partition("</style>")[0]
    narrowest, gap, width = (
        int(re.findall(pattern, style, re.DOTALL)[-1])
        for pattern in (
            r"\.cards {[^}]*minmax\((\d+)px",
            r"\.cards {[^}]*gap: (\d+)px",
            r"main {[^}]*width: (\d+)px",
        )
    )
    assert 7 * narrowest + 6 * gap <= width - 2 * 16, "between its paddings"


def test_every_kill_is_in_the_loss_picture_with_its_kind(record: Record) -> None:
    reference, interrupted = record.runs[1], record.runs[0]
    assert (reference.name, interrupted.name) == ("reference", "interrupted")

    def labels(*kinds: str) -> list[int]:
        kills = [replace(record.kills[0], how=kind) for kind in kinds]
        drawn = plots.loss(replace(record, kills=kills), reference, interrupted)
        return [drawn.count(plots.HOW[kind]) for kind in get_args(Kind)]

    assert labels(*get_args(Kind)) == [1] * len(get_args(Kind))
    assert not any(labels())


def test_equal_losses_are_called_exactly_equal_and_others_not(record: Record, tmp_path: Path) -> None:
    write_picture(record, tmp_path / "new" / "loss.svg")
    text = (tmp_path / "new" / "loss.svg").read_text()
    assert "exactly 0 at all 150 steps" in text
    assert "prefers-color-scheme: dark" in text
    interrupted, reference = record.runs
    step, shown, exact = interrupted.losses[40]
    interrupted.losses[40] = (step, shown, (float.fromhex(exact) * (1 + 2**-52)).hex())
    assert "exactly 0 at all" not in plots.loss(record, reference, interrupted)


def test_the_legend_has_the_stages_and_every_colour_of_the_scenarios_lane(record: Record) -> None:
    record.boots = [Boot("tpu-dev", 0, "x", "booting", [Stage("python", "running", 1, record.start, None)])]
    drawn = str(plots.timeline(record))
    labels = ("python", "wait for boots", "kill", "destroy", "other steps", "job runs", "interrupted")
    assert [label for label in labels if f">{label}<" not in drawn] == []
    assert plots.STAGES["python"] in drawn


def test_a_boot_ends_with_its_machine_and_not_with_a_full_disk(record: Record) -> None:
    boot, at = record.boots[0], record.boots[0].stages[0].start + 1

    def ends(how: str) -> bool:
        kills = [KillRecord(at, boot.node, how, "texts", shards=1)]
        return plots.ended(replace(record, kills=kills), boot, at - 1) == at

    kinds = ("disk", "stall", "crash", "maintenance", "power-loss", "notice")
    assert [*filter(ends, kinds)] == ["maintenance", "power-loss", "notice"]


def test_sixty_four_hosts_fit(record: Record) -> None:
    boot = replace(record.boots[0], stages=record.boots[0].stages[:1])
    record.boots = [replace(boot, worker=worker, boot_id=str(worker)) for worker in range(64)]
    (height,) = re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', str(plots.timeline(record)))
    assert float(height) < 1000


def test_a_kill_at_an_extraction_is_shown_with_its_shards(undrawn: Record) -> None:
    undrawn.kills = [KillRecord(undrawn.start + 60, "tpu-a-0", "disk", "texts", shards=40)]
    assert "disk: tpu-a-0, texts at 40 shards" in page(undrawn)
    assert "disk, texts at 40 shards" in printed(undrawn)
    assert "step 0" not in page(undrawn) + printed(undrawn)


def test_a_failed_scenarios_reason_and_claims_are_escaped(undrawn: Record) -> None:
    undrawn.verdict, undrawn.reason = "failed", "stage <python> failed & stopped"
    undrawn.checks = [Check("unchanged after `rm <all>`", "1 < 2")]
    text = page(undrawn)
    assert "<pre>stage &lt;python&gt; failed &amp; stopped</pre>" in text
    assert "unchanged after <code>rm &lt;all&gt;</code> <span" in text
    assert "(1 &lt; 2)" in text


def test_price_is_hours_times_price(undrawn: Record) -> None:
    undrawn.prices, undrawn.up_s = [Price("tpu-dev", 24.0, 16, True, "2026-11")], {"tpu-dev": 900.0}
    (cost,) = costs(undrawn)
    assert (cost.usd, cost.chip_hours) == (6.0, 4.0)
    assert ("on Google Cloud", "$6.00") in headlines(undrawn)
    assert "<td>tpu-dev</td>" in page(undrawn)
    assert "Prices of 2026-11" in page(undrawn)


def test_permissions_and_methods_are_listed_with_the_refused(undrawn: Record) -> None:
    undrawn.permissions = [
        {"account": "engineer", "permission": "tpu.nodes.create", "granted_by": [("roles/tpu.admin", "p")]},
        {"account": "member", "permission": "tpu.nodes.delete", "granted_by": []},
    ]
    undrawn.requests, undrawn.served = {"methods": {"get": {"validated": 2, "refused": 1}}}, ["put"]
    text = re.sub(r"\s*<t[dr][^>]*>|</t[dr]>", " ", page(undrawn))
    assert "2 permissions, 1 refused" in text
    for row in (
        "engineer  roles/tpu.admin  p  tpu.nodes.create",
        "member  none    tpu.nodes.delete",
        "get  2  1",
        "put  0  0",
    ):
        assert row in text


def test_the_terminal_shows_the_same_facts(record: Record) -> None:
    output = printed(record)
    assert "passed" in output
    for what, value in headlines(record):
        assert what in output
        assert value in output
    for fault in record.faults:
        assert fault["name"] in " ".join(output.split())


def test_minutes() -> None:
    assert [minutes(s) for s in (7, 59.6, 754, 3723)] == ["0:07", "1:00", "12:34", "1:02:03"]


def test_a_report_has_its_record_and_without_boots_and_runs_no_picture(
    undrawn: Record, tmp_path: Path
) -> None:
    text = write_report(undrawn, tmp_path / "report").read_text()
    assert text.startswith("<!doctype html>")
    assert pictures(text) == []
    assert Record.load(tmp_path / "report" / "record.json") == undrawn
