"""The page of the live view: everything escaped, right on a phone and in the dark, charts from history."""

import re
from dataclasses import replace
from html import unescape
from io import StringIO
from urllib.request import urlopen

import pytest
from rich.console import Console

from fleet.dashboard import Dashboard, serve
from fleet.model import Action, Condition, Decision, WorkerStatus
from fleet.page import page, rates
from fleet.show import MemberRow, in_rate
from tests.fleet.conftest import fleet
from tests.fleet.test_show import observation
from tests.views.pages import assert_stands_alone


def row(node: str = "tpu-dev", **more: object) -> MemberRow:
    known: dict[str, object] = {
        "slice": "train",
        "node": node, "zone": "us-east5-b", "state": "READY", "condition": "working", "stage": "launch",
        "samples": 120, "of_samples": 600, "shards": 0, "size_bytes": 0, "samples_per_s": 2.5,
        "left_s": 192.0, "why": "", "loss": 2.34567, "goodput": 0.873,
    }  # fmt: skip
    return MemberRow(**{**known, **more})  # type: ignore[arg-type]


RUN = "gs://my-checkpoints/runs/tiny"
HISTORY = {"tpu-dev": [(0.0, 0, None), (10.0, 20, 3.0), (20.0, 50, 2.5), (30.0, 50, 2.5), (40.0, 120, 2.4)]}


def drawn(*rows: MemberRow, lines: tuple[str, ...] = (), events: tuple[str, ...] = ()) -> str:
    return page("fleet dev", "12:00:00", rows, HISTORY, {"now": "$22.45/h"}, lines, events)


def test_a_slice_has_its_step_loss_rate_goodput_and_time_left() -> None:
    text = drawn(row())
    cells = re.sub(r"<[^>]+>", " ", text.partition("<tbody>")[2])
    for shown in ("train", "tpu-dev", "working", "120 of 600", "2.346", "2.50/s", "87%", "3 min"):
        assert shown in cells, shown
    assert '<progress max="600" value="120">' in text
    assert [text.count(f'aria-label="{name} over time"') for name in ("rate", "loss")] == [1, 1]
    assert "0.00/s to 7.00/s" in text
    assert "0 to 3" in text


def test_a_slice_that_boots_shows_its_stage_and_one_that_failed_its_reason() -> None:
    nothing = {"samples": 0, "of_samples": 0, **dict.fromkeys(("samples_per_s", "left_s", "loss", "goodput"))}
    booting = drawn(row(condition="starting", stage="python", **nothing))
    assert "boot: python" in booting
    assert "<svg" not in booting
    failed = drawn(row("b", condition="failed", why="its work failed: no good\n    fix: mend it"))
    assert "its work failed: no good" in failed
    assert "badge bad" in failed
    full = drawn(row("c", why="its boot disk is full"))
    assert '<small class="warn">its boot disk is full' in full


def test_it_stands_alone_fits_a_phone_and_escapes_all_that_others_wrote() -> None:
    text = drawn(row(why="<script>alert(1)</script>"), lines=("<b>",), events=("1 <i>first", "2 last"))
    assert_stands_alone(text)
    assert "max-width: 720px" in text
    assert "&lt;script&gt;" in text
    assert text.index("2 last") < text.index("1 &lt;i&gt;first"), "the newest event comes first"


def test_a_rate_is_never_below_zero() -> None:
    restarted = [(0.0, 100, None), (1.0, 200, None), (1.0, 210, None), (2.0, 50, None), (4.0, 60, None)]
    assert rates(restarted) == [(1.0, 100.0), (2.0, 0.0), (4.0, 5.0)]
    assert [in_rate(per_s) for per_s in (1234.5, 0, 0.1, 0.02, 0.001)] == [
        "1,234.50/s", "0.00/s", "0.10/s", "1.20/min", "3.60/h",
    ]  # fmt: skip


def test_each_slice_leads_to_its_log() -> None:
    text = page("fleet dev", "12:00:00", [row("tpu-dev")], HISTORY, {}, [], [], "my-project")
    (link,) = re.findall(r'href="([^"]+)"', text)
    link = unescape(link)
    assert link.startswith("https://console.cloud.google.com/logs/query;query=logName%3D%22projects%2Fmy-")
    assert link.endswith("labels.node%3D%22tpu-dev%22?project=my-project")


@pytest.mark.parametrize(
    ("run", "command"),
    [
        (RUN, "<code>tpu runs show dev tiny</code>"),
        ("gs://my-checkpoints/extractions/tiny", ""),
        ("gs://my-checkpoints/runs/a; rm -rf /", ""),
        ("", ""),
    ],
)
def test_a_slice_names_the_command_that_shows_its_run(run: str, command: str) -> None:
    text = page("fleet dev", "12:00:00", [row(run=run)], HISTORY, {}, [], [], "my-project", "dev")
    assert re.findall(r"<code>.*</code>", text) == ([command] if command else [])


def test_the_page_shows_the_slices_of_one_condition() -> None:
    working, failed = fleet(2)
    decisions = [
        Decision(working, Action.LEAVE, Condition.WORKING, "", status=WorkerStatus(1e6, run=RUN)),
        Decision(failed, Action.LEAVE, Condition.FAILED, "its work failed"),
    ]
    dashboard = Dashboard("fleet dev", Console(file=StringIO()), "my-project", "dev")
    dashboard.show(replace(observation(working, failed), decisions=decisions))
    server = serve(dashboard, 0)
    address = f"http://localhost:{server.server_port}/"

    def nodes(query: str) -> list[str]:
        with urlopen(f"{address}{query}") as reply:
            text = reply.read().decode()
        assert {"?", "?show=working", "?show=failed"} <= {*re.findall(r'href="([^"]+)"', text)}
        rows = text.partition("<tbody>")[2]
        return [node.name for node in (working, failed) if f"<small>{node.name}," in rows]

    try:
        assert nodes("") == nodes("?") == nodes("?show=<b>") == [working.name, failed.name]
        assert nodes("?show=failed") == [failed.name]
        assert nodes("?show=working") == [working.name]
    finally:
        server.shutdown()
        server.server_close()
