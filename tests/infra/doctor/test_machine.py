"""The doctor of this machine: its subjects, its fixes, and machines that lack something."""

import re
import shutil
from datetime import date
from importlib import metadata
from pathlib import Path

import pytest

from infra.doctor import machine

SUBJECTS = (
    "Python", "pulumi", "Go", "root", "/dev/fuse", "loop devices", "control groups", "Google login",
    "zone catalog", "price book",
)  # fmt: skip


def test_the_report_lists_every_subject_and_a_fix_for_each_that_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = machine.report(as_json=False)
    output = capsys.readouterr().out
    for subject in SUBJECTS:
        assert re.search(rf"(ok|missing|optional) +{re.escape(subject)} ", output), subject
    missing = re.findall(r"^  missing.*\n(.*)$", output, re.MULTILINE)
    assert all("fix: " in line for line in missing)
    assert status == bool(missing)


@pytest.mark.parametrize(
    ("today", "state", "message"),
    [(date(2025, 4, 1), "ok", r"\d+ prices"), (date(2026, 12, 1), "optional", r"read more than 90 days ago")],
)
def test_old_prices_are_a_warning(today: date, state: str, message: str) -> None:
    prices = machine.prices(today)
    assert prices.state == state
    assert re.search(message, prices.detail)
    assert bool(prices.fix) == (state == "optional")


def test_the_kernel_is_blamed_for_nothing_that_only_root_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(machine, "output_of", lambda *_: None)
    mapping = {finding.what: (finding.detail, finding.fix) for finding in machine.machine()}
    assert mapping.pop("root") == ("uid 1000", "sudo make rehearse")
    del mapping["disk"]
    assert set(mapping) == {"/dev/fuse", "loop devices", "control groups", "namespaces", "firewall"}
    assert set(mapping.values()) == {("only root can tell", "sudo make doctor")}


def test_a_machine_without_programs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "VENV_BIN", tmp_path)
    assert (machine.go().state, machine.debian_packages().detail) == ("missing", "not Debian")
    assert [finding.fix for finding in machine.programs()] == ["make setup"] * 3
    assert shutil.which("go") is None


@pytest.mark.parametrize(
    ("version", "content", "state", "message"),
    [
        ("WANTED", "official", "ok", r"v\d"),
        ("WANTED", "exec python -m rehearsal.providers.gcp serve", "optional", "but it is the stand-in"),
        ("1.2.3", "official", "optional", r"not v\d.* but resource-gcp-v1\.2\.3"),
    ],
)
def test_the_plugin_that_the_cli_would_take_is_reported(
    version: str, content: str, state: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desired = metadata.version("pulumi-gcp")
    folder = tmp_path / "plugins" / f"resource-gcp-v{version.replace('WANTED', desired)}"
    folder.mkdir(parents=True)
    (folder / "pulumi-resource-gcp").write_text(content)
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path))
    plugin = machine.plugin("gcp")
    assert plugin.state == state
    assert re.search(message, plugin.detail)
