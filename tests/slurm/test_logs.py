"""Lines of the controller in Cloud Logging: unit, resource, and the daemon's events as entries."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from infra.layers.slurm import names
from slurm import __main__ as program
from slurm import logs
from workload.host import events, unit
from workload.host import logs as shipping

ATTRIBUTES = {
    "project/project-id": "my-project", "instance/id": "17",
    f"instance/attributes/{names.MACHINE_KEY}": "slurm-dev-controller",
    f"instance/attributes/{names.ZONE_KEY}": "us-east5-b",
}  # fmt: skip


def test_the_follower_reads_the_units_of_slurms_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def run(cursor: Path, _: threading.Event, shipper: shipping.Shipper, units: Iterable[str]) -> None:
        given.extend([cursor, shipper._shared, *units])

    monkeypatch.setattr(shipping, "read", ATTRIBUTES.get)
    monkeypatch.setattr(shipping, "run", run)
    monkeypatch.setattr(logs.signal, "signal", lambda *_: None)
    assert program.main(["logs", names.CONTROLLER]) == 0
    cursor, shared, *units = given
    assert str(cursor) == unit.CURSOR
    assert {logs.KEEPER, "slurmctld.service", "google-startup-scripts.service"} <= {*units}
    assert shared["logName"] == "projects/my-project/logs/tpu-host"
    assert shared["labels"]["node"] == shared["labels"]["slice"] == "slurm-dev-controller"


def test_a_machine_that_is_not_described_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipping, "read", {}.get)
    monkeypatch.setattr(logs.signal, "signal", lambda *_: None)
    assert program.main(["logs", names.LOGIN]) == 1
    assert re.fullmatch(r"error: the node's metadata lacks .*\n", capsys.readouterr().err)


def test_the_unit_runs_the_present_program() -> None:
    text = unit.logs_unit("slurm logs login", "/opt/slurm/program")
    assert "WorkingDirectory=/opt/slurm/program\n" in text
    assert "ExecStart=/opt/tpu/venv/bin/python -m slurm logs login\n" in text
    assert f"-m workload.host logs --cursor {unit.CURSOR}\n" in unit.logs_unit()


def test_a_report_of_the_daemon_is_an_entry_with_its_fields() -> None:
    line = events.line("slurm-queue", {"partition": "tpu", "waiting": 1, "standing_s": 4000})
    record = {"__CURSOR": "a", "__REALTIME_TIMESTAMP": "1", "MESSAGE": line, "_SYSTEMD_UNIT": logs.KEEPER}
    _, entry = shipping.entry(json.dumps(record).encode())
    assert entry["jsonPayload"]["event"] == "slurm-queue"
    assert entry["jsonPayload"]["standing_s"] == 4000
