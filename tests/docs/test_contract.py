"""docs/architecture.md says what the code does: each table is compared with what it describes."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.engine.settings import from_file
from infra.layers.network.firewall import SLICE_PORTS
from infra.layers.tpu import startup
from infra.layers.tpu.metadata import metadata
from infra.settings import commands, rules
from infra.slices import names as slice_names
from infra.slices.nodes import nodes
from rehearsal.cloud.services.tpu.catalog import SLICES, ZONES
from workload.host import places
from workload.host.bucket import Bucket
from workload.host.errors import RunError
from workload.host.heartbeat import Heartbeat
from workload.host.metadata import Node
from workload.host.unit import COMMANDS, command_id, job_unit
from workload.place import PORT, Place
from workload.runs.location import RUN

ROOT = Path(__file__).resolve().parents[2]
RUNS = (
    *(
        "train tiny.toml",
        "Train tiny.toml",
        "trian",
        "python train.py",
        "python3",
        "bash -c 'a b'",
        "sh",
        "pythons",
    ),
    *(
        "./start.sh",
        "./a/b",
        "./../a",
        "/bin/true",
        "/bin/../a",
        "//",
        "./",
        "/a b",
        "~/a",
        "FOO=1 train",
        "",
        "  ",
    ),
    *(
        "train 'open",
        "train\tx",
        "train\nx",
        "train \u2028",
        "train \x1b",
        "train " + "x" * 494,
        "train " + "x" * 495,
    ),
    *("'train' x", "'train x'", "-x", "$(reboot)", "/opt/%n/start", " train x "),
)
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    assert match, f"architecture.md has no section {title!r}"
    return match[1]


def first_cells(table: str) -> list[str]:
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    return [cell for cell in rows if cell not in ("key", "---", "stack", "path", "object", "call")]


def test_stages_stand_in_the_order_in_which_they_run() -> None:
    listed = re.search(r"Stages, in order: (.*?)\.\n", ARCHITECTURE, re.DOTALL)
    assert listed
    assert tuple(re.findall(r"`([a-z-]+)`", listed[1])) == startup.STAGES


def test_hosts_and_those_who_watch_call_a_command_by_the_same_id() -> None:
    for run in ("train tiny.toml", " extract 'a b' --set x=1\n", ""):
        assert slice_names.command_id(run) == command_id(run)
    assert f"Environment=TPU_COMMAND={slice_names.command_id('train tiny.toml')}\n" in job_unit(
        "train tiny.toml"
    )


@settings_of_hypothesis(deadline=None)
@given(
    st.one_of(
        st.sampled_from(RUNS),
        st.text(max_size=30),
        st.builds(str.__add__, st.sampled_from(RUNS), st.text(max_size=9)),
    )
)
def test_settings_accept_what_a_host_can_start_and_nothing_else(run: str) -> None:
    try:
        job_unit(run)
    except RunError:
        assert not rules.COMMAND.ok(run)
    else:
        assert rules.COMMAND.ok(run)


def test_settings_accept_the_names_that_the_trainer_accepts() -> None:
    assert commands.RUN_NAME == RUN


def test_the_commands_of_a_host_are_those_of_the_workload() -> None:
    assert commands.COMMANDS == COMMANDS
    output = subprocess.run(
        [sys.executable, "-m", "workload", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    known = set(re.findall(r"^    ([a-z]+)(?: |$)", output.stdout, re.MULTILINE))
    # launch starts one of them, or anything else; preprocess needs Spark, which hosts don't have.
    assert set(COMMANDS) == known - {"host", "launch", "preprocess"}
    assert not rules.COMMAND.ok("preprocess text.toml --local")


def test_the_options_of_train_are_those_of_the_workload() -> None:
    output = subprocess.run(
        [sys.executable, "-m", "workload", "train", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {*commands.TRAIN_OPTIONS, *commands.TRAIN_SWITCHES, "--help"} == set(
        re.findall(r"^  (?:-h, )?(--\w+)", output.stdout, re.MULTILINE)
    )
    cut = [sys.executable, "-m", "workload", "train", "tiny.toml", "--nam", "x"]
    refused = subprocess.run(cut, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode, "unrecognized arguments: --nam" in refused.stderr) == (2, True)


def test_node_metadata_is_the_table() -> None:
    checked = from_file("dev")
    written = metadata(
        checked,
        replace(nodes(checked)[0], together=("a", "b"), member=0, checkpoint_folder="jobs/a"),
        bucket="b",
        steps_bucket="b-steps",
        data_disk="d",
    )
    listed = {key for cell in first_cells(section("Node metadata")) for key in cell.split(", ")}
    # tpu:bundle is written by `tpu publish`, so the settings that ship have none.
    assert listed == set(written) | {"tpu-bundle"}


def test_environment_of_services_and_logins_is_the_list() -> None:
    listed = re.search(r"Environment of services and logins: (.*?)\.\n", ARCHITECTURE, re.DOTALL)
    assert listed
    names = set(re.findall(r"`([A-Z_]+)(?:=[^`]*)?`", listed[1]))
    part = (ROOT / "infra/layers/tpu/startup/parts/environment.sh").read_text(encoding="utf-8")
    written = set(re.findall(r'(?:^|echo ")([A-Z_]+)=', part, re.MULTILINE)) - {"PATH"}
    assert names == written | set(Place(0, 1, 0, 1, "10.0.0.2").variables())


def test_what_a_job_of_several_slices_gets_is_the_list() -> None:
    listed = re.search(r"A job of several slices also gets(.*?)\.\n", ARCHITECTURE, re.DOTALL)
    assert listed
    node = Node("a", 0, 1, "bucket", 20.0, "job", ("a", "b"))
    given = re.findall(r"^(\w+)=", places.environment(node, "10.0.0.2:8476"), re.MULTILINE)
    assert set(re.findall(r"`([A-Z_]+)`", listed[1])) == set(given)


def test_metadata_of_boots_and_heartbeats_is_what_they_are_written_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = (ROOT / "infra/layers/tpu/startup/parts/status.sh").read_text(encoding="utf-8")
    written = re.search(r"^upload_body\(\) \{(.*?)^\}", part, re.MULTILINE | re.DOTALL)
    boot = re.search(r"^\| `boot/<node>/.*; metadata: (.*) \|$", ARCHITECTURE, re.MULTILINE)
    assert written
    assert boot
    keys = set(re.findall(r'"(\w+)\\?":', written[1])) - {"contentType", "metadata"}
    assert set(re.findall(r"`(\w+)`", boot[1])) == keys

    output: dict[str, str] = {}
    monkeypatch.setattr("workload.host.heartbeat.read", lambda _: "4711")
    monkeypatch.setattr(Bucket, "write_json", lambda *arguments: output.update(arguments[-1]))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    host = {"CHECKPOINT_BUCKET": "b", "TPU_NAME": "tpu-dev", "WORKER_ID": "0", "TPU_COMMAND": "0"}
    with Heartbeat.of_host(host) as heartbeat:
        facts = re.findall(r"`(\w+)`", str(Heartbeat.report.__doc__))
        heartbeat.report(**dict.fromkeys(facts, "1"))
        heartbeat.end("failed", ValueError("no good"))
    rows = re.search(r"\| metadata of a heartbeat \|.*?\n\n", ARCHITECTURE, re.DOTALL)
    assert rows
    listed = [key for row in rows[0].splitlines()[2:-1] for key in row.split("|")[1].strip().split(", ")]
    assert sorted(listed) == sorted(output)


def test_states_of_a_boot_are_the_table() -> None:
    parts = ROOT / "infra/layers/tpu/startup/parts"
    status, runner, end = ((parts / f"{name}.sh").read_text("utf-8") for name in ("status", "runner", "main"))
    recorded = set(re.findall(r"\brecord ([a-z]+) ", runner + end))
    renamed = set(re.findall(r"\) echo ([a-z-]+) ;;", status))
    rows = re.search(r"\| state of a boot \|.*?\n\n", ARCHITECTURE, re.DOTALL)
    assert rows
    assert set(re.findall(r"^\| `([a-z-]+)`", rows[0], re.MULTILINE)) == recorded | renamed
    loader = startup.loader()
    assert set(re.findall(r"\bstate=([a-z-]+)", loader)) == renamed
    assert set(re.findall(r"\breport (booting|failed|\w+) ", loader)) < recorded


def test_the_port_that_hosts_are_given_for_jax_is_open_and_on_the_page() -> None:
    assert str(PORT) in SLICE_PORTS
    assert {str(PORT)} == set(re.findall(r"the workload pins (\d+)", section("Ports")))


def test_the_emulated_cloud_has_the_zones_and_slices_of_the_catalog() -> None:
    # Neither may import the other, and a zone that only one of them knew would be found out too late.
    assert set(CATALOG.zones) == ZONES
    offered = {(item.accelerator_type, item.topology, item.hosts) for item in SLICES}
    assert {(kind.name, kind.topology, kind.hosts) for kind in CATALOG.types} == offered
