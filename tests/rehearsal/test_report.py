"""The report, from the record of a run that really happened (`recorded.json`, the default scenario)."""

from __future__ import annotations

import copy
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from rehearsal.scenario.killing import Kind
from rehearsal.scenario.record import Boot, KillRecord, Price, Record, Stage
from rehearsal.scenario.report import plots, write_report
from rehearsal.scenario.report.facts import costs, headlines, minutes
from rehearsal.scenario.report.page import page
from rehearsal.scenario.report.table import print_report
from tests.pages import assert_stands_alone, pictures

RECORDED = Path(__file__).with_name("recorded.json")


@pytest.fixture(scope="module")
def recorded() -> Record:
    return Record.load(RECORDED)


@pytest.fixture(scope="module")
def shown(recorded: Record) -> str:
    """The page of the record as it is: three pictures, drawn once."""
    return page(copy.deepcopy(recorded))


@pytest.fixture
def record(recorded: Record) -> Record:
    return copy.deepcopy(recorded)


@pytest.fixture
def undrawn(record: Record) -> Record:
    """One whose page has no pictures, which are what takes long."""
    record.boots, record.runs = [], []
    return record


def test_the_page_stands_alone_and_its_pictures_share_no_ids(shown: str) -> None:
    assert_stands_alone(shown)
    ids = re.findall(r'\bid="([^"]+)"', shown)
    assert len(pictures(shown)) == 3
    assert len(ids) == len(set(ids))


def test_the_same_record_gives_the_same_page(record: Record, shown: str) -> None:
    assert page(record) == shown


def test_every_kill_is_in_the_loss_picture_with_its_kind(record: Record) -> None:
    reference, interrupted = record.runs[1], record.runs[0]
    assert (reference.name, interrupted.name) == ("reference", "interrupted")

    def labels(*kinds: str) -> list[int]:
        kills = [replace(record.kills[0], how=kind) for kind in kinds]
        drawn = plots.loss(replace(record, kills=kills), reference, interrupted)
        return [drawn.count(plots.HOW[kind]) for kind in get_args(Kind)]

    assert labels(*get_args(Kind)) == [1] * len(get_args(Kind))
    assert not any(labels())


def test_equal_losses_are_called_exactly_equal_and_others_not(record: Record) -> None:
    reference, interrupted = record.runs[1], record.runs[0]
    assert "exactly 0 at all" in plots.loss(record, reference, interrupted)
    step, shown, exact = interrupted.losses[40]
    interrupted.losses[40] = (step, shown, (float.fromhex(exact) * (1 + 2**-52)).hex())
    assert "exactly 0 at all" not in plots.loss(record, reference, interrupted)


def test_every_colour_of_the_scenarios_lane_is_in_the_legend(record: Record) -> None:
    drawn = plots.timeline(record) or ""
    assert [
        name for name in ("wait for boots", "kill", "destroy", "other steps") if f">{name}<" not in drawn
    ] == []


def test_a_host_that_died_while_booting_is_drawn_to_its_end(record: Record) -> None:
    kill = record.kills[0]
    record.boots = [Boot("tpu-dev", 0, "x", "booting", [Stage("python", "running", 1, kill.time - 5, None)])]
    assert plots.ended(record, record.boots[0], kill.time - 5) == kill.time
    assert plots.STAGES["python"] in (plots.timeline(record) or "")


def test_a_strike_at_an_extraction_says_how_many_shards_there_were(undrawn: Record) -> None:
    undrawn.kills = [KillRecord(undrawn.start + 60, "tpu-a-0", "disk", "texts", shards=40)]
    text = page(undrawn)
    assert "disk: tpu-a-0, texts at 40 shards" in text
    console = Console(width=120, record=True, file=io.StringIO())
    print_report(undrawn, console)
    assert "disk, texts at 40 shards" in console.export_text()
    assert "step 0" not in text + console.export_text()


def test_a_full_disk_ends_no_boot_and_a_pulled_plug_does(record: Record) -> None:
    boot, at = record.boots[0], record.boots[0].stages[0].start + 1
    for how, ends in (
        ("disk", False),
        ("stall", False),
        ("crash", False),
        ("maintenance", True),
        ("power-loss", True),
        ("notice", True),
    ):
        record.kills = [KillRecord(at, boot.node, how, "texts", shards=1)]
        assert (plots.ended(record, boot, at - 1) == at) == ends


def test_sixty_four_hosts_fit(record: Record) -> None:
    boot = replace(record.boots[0], stages=record.boots[0].stages[:1])
    record.boots = [replace(boot, worker=worker, boot_id=str(worker)) for worker in range(64)]
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', str(plots.timeline(record))).group(1))  # type: ignore[union-attr]
    assert height < 1000


def test_without_boots_and_runs_there_are_no_pictures(undrawn: Record) -> None:
    assert pictures(page(undrawn)) == []


def test_a_failed_story_says_why_and_escapes_it(undrawn: Record) -> None:
    undrawn.verdict, undrawn.reason = "failed", "stage <python> failed & stopped"
    assert "<pre>stage &lt;python&gt; failed &amp; stopped</pre>" in page(undrawn)


def test_price_is_hours_times_price(undrawn: Record) -> None:
    undrawn.prices, undrawn.up_s = [Price("tpu-dev", 24.0, 16, True, "2026-11")], {"tpu-dev": 900.0}
    (cost,) = costs(undrawn)
    assert (cost.usd, cost.chip_hours) == (6.0, 4.0)
    assert ("on Google Cloud", "$6.00") in headlines(undrawn)
    assert "$6.00" in page(undrawn)
    assert "2026-11" in page(undrawn)


def test_the_terminal_shows_the_same_facts(record: Record) -> None:
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    print_report(record, console)
    output = console.export_text()
    assert "passed" in output
    for what, value in headlines(record):
        assert what in output
        assert value in output
    for fault in record.faults:
        assert fault["name"] in " ".join(output.split())


@pytest.mark.parametrize(
    ("seconds", "shown"), [(7, "0:07"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03")]
)
def test_minutes(seconds: float, shown: str) -> None:
    assert minutes(seconds) == shown


def test_written_files(undrawn: Record, tmp_path: Path) -> None:
    target = write_report(undrawn, tmp_path / "report")
    assert target.read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "report" / "record.json").read_text())["verdict"] == "passed"
    assert Record.load(tmp_path / "report" / "record.json") == undrawn
