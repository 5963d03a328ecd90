"""Tables of docs/internals/architecture.md against the code, and packages that may not import each other."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.engine.settings import from_file
from infra.layers.network.firewall import SLICE_PORTS
from infra.layers.tpu import startup
from infra.layers.tpu.metadata import metadata
from infra.settings import commands, rules, variables
from infra.slices import names as slice_names
from infra.slices.nodes import nodes
from rehearsal.cloud.services.tpu.catalog import SLICES, ZONES
from workload.__main__ import main as workload
from workload.host import places, secret_variables
from workload.host.bucket import Bucket
from workload.host.errors import RunError
from workload.host.heartbeat import Heartbeat
from workload.host.metadata import HostDescription
from workload.host.unit import COMMANDS, command_id, job_unit
from workload.place import PORT, Place
from workload.runs.location import RUN

ROOT = Path(__file__).resolve().parents[2]
RUNS = (
    "train tiny.toml", "Train tiny.toml", "trian", "python train.py", "python3", "bash -c 'a b'", "sh",
    "pythons", "./start.sh", "./a/b", "./../a", "/bin/true", "/bin/../a", "//", "./", "/a b", "~/a",
    "FOO=1 train", "", "  ", "train 'open", "train\tx", "train\nx", "train \u2028", "train \x1b",
    "train " + "x" * 494, "train " + "x" * 495, "'train' x", "'train x'", "-x", "$(reboot)",
    "/opt/%n/start", " train x ",
)  # fmt: skip
PARTS = ROOT / "infra" / "layers" / "tpu" / "startup" / "parts"
ARCHITECTURE = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")


def part(pattern: str) -> str:
    """The group of a pattern that the page matches once."""
    match = re.search(pattern, ARCHITECTURE, re.DOTALL | re.MULTILINE)
    assert match, f"architecture.md has no {pattern!r}"
    return match[1]


def first_cells(table: str) -> set[str]:
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    return {key.strip("`") for cell in cells if cell != "---" for key in cell.split(", ")}


def test_stages_stand_in_the_order_in_which_they_run() -> None:
    listed = part(r"Stages, in order: (.*?)\.\n")
    assert tuple(re.findall(r"`([a-z-]+)`", listed)) == startup.STAGES


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


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        workload([*words, "--help"])
    return capsys.readouterr().out


def test_the_commands_of_a_host_are_those_of_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.COMMANDS == COMMANDS
    known = set(re.findall(r"^    ([a-z]+)(?: |$)", help_of(capsys), re.MULTILINE))
    # launch and secrets start one of them, or anything else; preprocess needs Spark, which hosts don't have.
    assert set(COMMANDS) == known - {"host", "launch", "preprocess", "secrets"}
    assert not rules.COMMAND.ok("preprocess text.toml --local")


@pytest.mark.parametrize(
    ("program", "known"),
    [
        ("train", (*commands.TRAIN_OPTIONS, *commands.TRAIN_SWITCHES)),
        ("extract", (*commands.EXTRACT_OPTIONS, *commands.EXTRACT_SWITCHES)),
    ],
)
def test_the_options_of_a_run_are_those_of_the_workload(
    program: str, known: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    options = re.findall(r"^  (?:-h, )?(--\w+)", help_of(capsys, program), re.MULTILINE)
    assert {*known, "--help"} == set(options)


def test_an_option_of_train_is_not_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        workload(["train", "tiny.toml", "--nam", "x"])
    assert "unrecognized arguments: --nam" in capsys.readouterr().err


def test_node_metadata_is_the_table() -> None:
    checked = from_file("dev")
    more: dict[str, Any] = {"variables": {"A": "1"}, "checkpoint_folder": "jobs/a", "image": "a@sha256:b"}
    node = replace(nodes(checked)[0], together=("a", "b"), member=0, **more)
    written = metadata(checked, node, bucket="b", steps_bucket="b-steps", data_disk="d")
    # tpu:bundle is written by `tpu publish`, so the settings that ship have none.
    assert first_cells(part(r"^\| key \| value \|\n(.*?)\n\n")) == {*written, "tpu-bundle"}


def test_environment_of_services_and_jobs_is_the_list() -> None:
    listed = re.findall(r"`([A-Z_]+)(?:=[^`]*)?`", part(r"Environment of services and logins: (.*?)\.\n"))
    written = re.findall(
        r'(?:^|echo ")([A-Z_]+)=', (PARTS / "environment.sh").read_text("utf-8"), re.MULTILINE
    )
    assert {*listed, "PATH"} == {*written, *Place(0, 1, 0, 1, "10.0.0.2").variables()}
    node = HostDescription("a", 0, 1, "bucket", 20.0, "job", ("a", "b"))
    given = re.findall(r"^(\w+)=", places.environment(node, "10.0.0.2:8476"), re.MULTILINE)
    listed = re.findall(r"`([A-Z_]+)`", part(r"A job of several slices also gets(.*?)\.\n"))
    assert set(listed) == set(given)
    assert not [name for name in {*written, *given, "PATH", "TPU_COMMAND"} if variables.NAME.ok(name)]


def test_a_host_finds_the_references_of_a_programs_secrets() -> None:
    sent = variables.Variables(secrets=("hf-token", "A=key@3")).environment
    assert [*sent] == [secret_variables.VARIABLE]
    references = map(secret_variables._REFERENCE.fullmatch, sent[secret_variables.VARIABLE].split())
    assert [match and match.groups() for match in references] == [
        ("hf-token", "latest", "HF_TOKEN"), ("key", "3", "A"),
    ]  # fmt: skip


def test_metadata_of_boots_and_heartbeats_is_what_they_are_written_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = re.search(r"^upload_body\(\) \{(.*?)^\}", (PARTS / "status.sh").read_text("utf-8"), re.M | re.S)
    assert body
    keys = set(re.findall(r'"(\w+)\\?":', body[1])) - {"contentType", "metadata"}
    assert set(re.findall(r"`(\w+)`", part(r"^\| `boot/<node>/[^\n]*; metadata: ([^\n]*) \|$"))) == keys

    output: dict[str, str] = {}
    monkeypatch.setattr("workload.host.heartbeat.read", lambda _: "4711")
    monkeypatch.setattr(Bucket, "write_json", lambda *arguments: output.update(arguments[-1]))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    host = {"CHECKPOINT_BUCKET": "b", "TPU_NAME": "tpu-dev", "WORKER_ID": "0", "TPU_COMMAND": "0"}
    with Heartbeat.of_host(host) as heartbeat:
        facts = re.findall(r"`(\w+)`", str(Heartbeat.report.__doc__))
        heartbeat.report(**dict.fromkeys(facts, "1"))
        heartbeat.end("failed", ValueError("no good"))
    assert first_cells(part(r"^\| metadata of a heartbeat \| value \|\n(.*?)\n\n")) == set(output)


def test_states_of_a_boot_are_the_table() -> None:
    status, runner, end = ((PARTS / f"{name}.sh").read_text("utf-8") for name in ("status", "runner", "main"))
    recorded = set(re.findall(r"\brecord ([a-z]+) ", runner + end))
    renamed = set(re.findall(r"\) echo ([a-z-]+) ;;", status))
    assert first_cells(part(r"^\| state of a boot \| when \|\n(.*?)\n\n")) == recorded | renamed
    loader = startup.loader()
    assert set(re.findall(r"\bstate=([a-z-]+)", loader)) == renamed
    assert set(re.findall(r"\breport (booting|failed|\w+) ", loader)) < recorded


def test_the_port_that_hosts_are_given_for_jax_is_open_and_on_the_page() -> None:
    assert str(PORT) in SLICE_PORTS
    assert part(r"the workload pins (\d+)") == str(PORT)


def test_the_emulated_cloud_has_the_zones_and_slices_of_the_catalog() -> None:
    # Neither may import the other, and a zone that only one of them knew would be found out too late.
    assert set(CATALOG.zones) == ZONES
    offered = {(item.accelerator_type, item.topology, item.hosts) for item in SLICES}
    assert {(kind.name, kind.topology, kind.hosts) for kind in CATALOG.types} == offered
