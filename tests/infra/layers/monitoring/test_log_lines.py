"""Lines of logs that metrics count, and a runbook for each alert."""

import re
from pathlib import Path

from infra.engine.registry import layers
from infra.layers.monitoring import alerts
from infra.layers.tpu import startup
from workload.host import events


def test_the_boot_script_says_what_the_metric_counts() -> None:
    script = startup.render()
    assert 'log "boot failed in stage $name;' in script
    assert '"boot failed in stage $1' in script
    assert re.search(r"boot failed in stage ([a-z-]+)", "boot failed in stage mount-data; run")


def test_an_event_is_a_line_and_an_entry() -> None:
    result = events.payload(events.line("save", {"step": 5, "loss": float("nan")}))
    assert result is not None
    assert (result["event"], result["step"], result["loss"]) == ("save", 5, "NaN")
    assert result["message"].endswith('Z save {"step": 5, "loss": NaN}')
    assert events.payload("step 5/10  loss 2.0") is None
    assert events.payload('2026-11-24T10:00:00Z save {"step": ') is None


def test_runbooks_and_alerts_are_the_same() -> None:
    pages = {path.stem for path in (Path(__file__).parents[4] / "docs" / "runbooks").glob("*.md")}
    assert pages - {"README"} == {*alerts.of(layers())}
