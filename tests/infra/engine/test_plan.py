"""Price and plan before anything exists."""

import json
from pathlib import Path

import pytest
import yaml

from cli.__main__ import main
from infra.core.environment import layers_on
from infra.engine.plan import as_json, empty_state, markdown, plan, text
from infra.engine.prices import of
from infra.engine.pulumi import Pulumi
from infra.engine.settings import from_file
from infra.errors import CommandError, InfraError
from infra.prices.table import table
from infra.settings.sources import ROOT
from infra.slices.nodes import nodes
from infra.slices.preflight import Verdict
from infra.slices.price import rows
from tests.infra.conftest import FakePulumi
from tests.infra.recording import BASE, parsed

ON = layers_on(from_file("dev", ROOT))
LAYERS = [layer.name for layer in ON]
NO_DATA = {key: value for key, value in BASE.items() if not key.startswith("data:")}
FOLDERS = [layer.directory for layer in ON]


@pytest.fixture(autouse=True)
def _no_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a process of its own, which takes half a second."""
    monkeypatch.setattr("infra.slices.preflight.verdict_on", lambda *_: None)


def test_before_anything_exists_nothing_is_written_anywhere(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", [])
    before = {path: path.read_bytes() for path in ROOT.glob("Pulumi*.yaml")}
    assert main(["plan", "dev"]) == 0
    previews = [
        (folder, backend) for folder, arguments, backend in pulumi_cli.calls if arguments[0] == "preview"
    ]
    assert [backend for _, backend in previews] == [previews[0][1]] * 4
    assert previews[0][1] != "file:///the-users-own"
    stored = Path(previews[0][1].removeprefix("file://")).parent
    assert {Path(folder).relative_to(stored).as_posix() for folder, _ in previews} == set(FOLDERS)
    assert not stored.exists(), "the temporary state is thrown away"
    asked_of_the_user = [
        arguments for _, arguments, backend in pulumi_cli.calls if "the-users-own" in backend
    ]
    assert {" ".join(arguments[:2]) for arguments in asked_of_the_user} == {"stack ls"}
    assert {path: path.read_bytes() for path in ROOT.glob("Pulumi*.yaml")} == before
    output = capfd.readouterr().out
    assert [f"== {layer}: no stack known, planned from nothing ==" in output for layer in LAYERS] == [
        True
    ] * 4
    assert output.index("$/hour") < output.index("== storage")
    assert output.splitlines()[-1] == "no changes"


def event(op: str, urn: str, **more: object) -> dict[str, object]:
    kind = urn.split("::")[2].rpartition("$")[2]
    return {"resourcePreEvent": {"metadata": {"op": op, "urn": urn, "type": kind, **more}, "planning": True}}


def warning(message: str) -> dict[str, object]:
    return {"diagnosticEvent": {"severity": "warning", "message": f"<{{%reset%}}>{message}<{{%reset%}}>\n"}}


STACK = "urn:pulumi:dev::data"
EVENTS = (
    event("same", f"{STACK}::pulumi:pulumi:Stack::data-dev"),
    event("create", f"{STACK}::tpu:data:Disk$gcp:compute/disk:Disk::corpus-a"),
    event("update", f"{STACK}::gcp:compute/disk:Disk::corpus-b", diffs=["labels"]),
    event("create-replacement", f"{STACK}::gcp:compute/disk:Disk::corpus-c"),
    event("replace", f"{STACK}::gcp:compute/disk:Disk::corpus-c", detailedDiff={"snapshot": {}, "size": {}}),
    event("delete-replaced", f"{STACK}::gcp:compute/disk:Disk::corpus-c"),
    event("delete", f"{STACK}::gcp:compute/disk:Disk::corpus-d"),
    warning("the provider is old"),
    warning("the provider is old"),
)


def test_a_plan_names_each_change_once_and_counts_them(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    pulumi_cli.log(*EVENTS)
    assert main(["plan", "dev"]) == 0
    output = capfd.readouterr().out
    shown = output[output.index("== network: compared with its stack ==\n") :].splitlines()[1:5]
    assert [line.split() for line in shown] == [
        ["+", "gcp:compute/disk:Disk", "corpus-a"],
        ["~", "gcp:compute/disk:Disk", "corpus-b", "[labels]"],
        ["+-", "gcp:compute/disk:Disk", "corpus-c", "[snapshot,", "size]"],
        ["-", "gcp:compute/disk:Disk", "corpus-d"],
    ]
    assert output.count("warning: the provider is old") == 1
    rows = [line.split() for line in output.splitlines()]
    head = ["layer", "+", "~", "+-", "-", "$/hour", "$/day", "$/month", "idle", "$/month"]
    assert head in rows
    assert ["network", "1", "1", "1", "1", "0.00", "0.00", "0.00", "0.00"] in rows
    assert ["data", "1", "1", "1", "1", "~0.50", "~12.10", "~368.00", "~368.00"] in rows
    assert ["tpu", "1", "1", "1", "1", "22.45", "538.87", "16,390.54", "0.00"] in rows
    assert ["sum", "4", "4", "4", "4", "~22.96", "~550.97", "~16,758.54", "~368.00"] in rows
    assert "plan of" not in output, "what Pulumi prints is for --full"
    assert main(["plan", "dev", "--full"]) == 0
    assert capfd.readouterr().out.count("plan of") == 4


def test_what_is_taken_over_is_a_change(pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]) -> None:
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    pulumi_cli.log(event("import", "urn:pulumi:dev::storage::gcp:storage/bucket:Bucket::theirs"))
    assert main(["plan", "dev"]) == 0
    output = capfd.readouterr().out
    assert "\n  =  gcp:storage/bucket:Bucket  theirs\n" in output
    assert output.endswith("\nnext: tpu up dev\n")
    assert main(["plan", "dev", "storage"]) == 0
    assert capfd.readouterr().out.endswith("\nnext: tpu up dev storage\n")


def test_a_plan_as_json_and_as_a_comment_for_ci(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    pulumi_cli.log(*EVENTS)
    assert main(["plan", "dev", "--json"]) == 0
    parsed = json.loads(capfd.readouterr().out)
    assert [item["layer"] for item in parsed["layers"]] == LAYERS
    assert parsed["layers"][0]["changes"][1] == {
        "operation": "update", "kind": "gcp:compute/disk:Disk", "name": "corpus-b", "keys": ["labels"]
    }  # fmt: skip
    hourly = 16 * 1.4033 + (1000 * 0.08 + 2400 * 0.12) / 730
    assert parsed["hourly"] == pytest.approx(hourly)
    assert parsed["daily"] == pytest.approx(24 * hourly)
    assert parsed["monthly"] == pytest.approx(730 * hourly)
    assert parsed["idle_monthly"] == pytest.approx(1000 * 0.08 + 2400 * 0.12)
    assert parsed["prices_checked"] is False
    (slices,) = [item for item in parsed["layers"] if item["layer"] == "tpu"]
    assert (slices["monthly"], slices["idle_monthly"]) == (pytest.approx(730 * 16 * 1.4033), 0)
    assert slices["prices_checked"] is True
    assert [rate["dollars"] for rate in parsed["rates"] if rate["unit"] == "GiB-month"] == [0.02]
    assert main(["plan", "dev", "--format", "markdown"]) == 0
    comment = capfd.readouterr().out
    assert "| layer | + | ~ | +- | - | $/hour | $/day | $/month | idle $/month |\n| --- | ---: |" in comment
    assert comment.count("<details><summary>") == comment.count("</details>") == 4
    details = "<details><summary>tpu: 4 changes</summary>\n\n```text\n+  gcp:compute/disk:Disk  corpus-a"
    assert details in comment
    assert "next:" not in comment


def test_of_the_official_providers_errors_only_the_sentence_is_shown(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    sentence = "Error creating Network: googleapi: Error 409: it is there already, alreadyExists"
    framed = f"error:   sdk-v2/provider2.go:571: sdk.helper_schema: {sentence}: provider=google-beta@9.35.0\n"
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    for command in ("preview", "refresh"):
        pulumi_cli.answer(command, framed, status=255)
    assert main(["plan", "dev"]) == 1
    assert f"\nerror:   {sentence}\n" in capfd.readouterr().out
    with pytest.raises(CommandError) as caught:
        Pulumi("dev").execute("network", "refresh")
    assert str(caught.value) == f"`pulumi refresh` of network failed: error:   {sentence}"


def test_what_is_up_is_compared_with_its_state(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    assert main(["plan", "dev"]) == 0
    previews = [
        (folder, backend) for folder, arguments, backend in pulumi_cli.calls if arguments[0] == "preview"
    ]
    assert sorted(previews) == sorted((str(ROOT / folder), "file:///the-users-own") for folder in FOLDERS)
    assert "init" not in " ".join(pulumi_cli.commands())
    assert capfd.readouterr().out.splitlines()[-1] == "no changes"


def test_a_stack_whose_passphrase_is_missing_is_compared_with_nothing(
    pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    pulumi_cli.answer("whoami", {"url": "file:///the-users-own"})
    assert main(["plan", "dev"]) == 1
    assert "error: no passphrase for the stacks' secrets" in capfd.readouterr().err
    assert "preview" not in pulumi_cli.commands()


def test_without_a_login_it_is_said_and_works(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", status=255, err="error: PULUMI_ACCESS_TOKEN must be set")
    assert main(["plan", "prod"]) == 0
    output = capfd.readouterr().out
    assert (
        output.count("no Pulumi state to compare with (`pulumi login` chooses one): `pulumi stack` of ") == 1
    )
    assert "storage failed: pulumi isn't logged in\n" in output
    assert "691.20" in output


def test_all_plans_are_shown_before_the_failed_ones_are_named(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", [])
    pulumi_cli.answer("preview", status=255, err="error: no plugin")
    assert main(["plan", "dev"]) == 1
    output = capfd.readouterr()
    assert output.err.splitlines()[-1] == (
        "error: `pulumi preview` of storage, data, network, tpu failed; see the output above"
    )
    assert output.out.count("error: no plugin") == pulumi_cli.commands().count("preview") == 4
    assert "next:" not in output.out


def test_a_plugin_that_cannot_be_downloaded_is_a_line_for_each_layer_and_one_fix(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", [])
    install = "pulumi plugin install resource gcp v10.2.0"
    retried = "warning: error downloading provider: Get: refused\n    Will retry in 80ms [1/5]\n" * 5
    lacking = (
        "error: Could not automatically download and install resource plugin 'pulumi-resource-gcp' at "
        f"version v10.2.0, install the plugin using `{install}`: error downloading provider gcp to file"
    )
    pulumi_cli.answer("preview", status=255, err=f"{retried}{lacking}\n")
    assert main(["plan", "dev"]) == 1
    output = capfd.readouterr()
    assert "Will retry" not in output.out
    assert output.out.count(f"  a plugin is missing: {install} failed: error downloading provider gcp") == 4
    assert "16,758.54" in output.out, "prices need no plugin"
    assert output.err.endswith(f"    fix: {install}; or use the emulated cloud: tpu rehearsal shell\n")
    assert main(["plan", "dev", "--full"]) == 1
    output = capfd.readouterr()
    assert output.out.count("Will retry") == 4 * 5, "all of Pulumi's output"
    assert output.err.endswith(f"    fix: {install}; or use the emulated cloud: tpu rehearsal shell\n")


@pytest.mark.parametrize("words", [
    "error: failed to load application credentials:",
    "no Google credentials: Your default credentials were not found. To set up",
])  # fmt: skip
def test_a_plan_that_lacks_a_login_at_google_names_the_command(
    words: str, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack ls", [])
    pulumi_cli.answer("preview", status=255, err=words)
    assert main(["plan", "dev"]) == 1
    assert capfd.readouterr().err.endswith("    fix: gcloud auth application-default login\n")


def test_wrong_settings_ask_pulumi_nothing(pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nowhere"]) == 2
    assert "\nerror: Pulumi.nowhere.yaml does not exist" in capfd.readouterr().err
    assert pulumi_cli.calls == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("up nowhere", "Pulumi.nowhere.yaml does not exist"),
        ("down nowhere tpu", "Pulumi.nowhere.yaml does not exist"),
        ("settle nowhere", "Pulumi.nowhere.yaml does not exist"),
        ("up dev tpus", "no layer tpus\n    fix: one of storage, builds, data, monitoring, "),
        ("down dev tpus", "no layer tpus"),
        ("settle dev tpus", "no layer tpus"),
    ],
)
def test_a_wrong_environment_or_layer_asks_pulumi_nothing(
    line: str, message: str, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["infra", *line.split()]) == 2
    assert capfd.readouterr().err.startswith(f"error: {message}")
    assert pulumi_cli.calls == []


def test_without_a_login_the_command_that_logs_in_is_named(
    pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    pulumi_cli.answer("whoami", status=255, err="error: PULUMI_ACCESS_TOKEN must be set for login")
    assert main(["infra", "up", "dev", "storage"]) == 1
    assert "isn't logged in\n    fix: pulumi login gs://BUCKET" in capfd.readouterr().err


def test_the_empty_state_has_the_same_projects_and_settings(tmp_path: Path, pulumi_cli: FakePulumi) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "Pulumi.yaml").write_text((ROOT / folder / "Pulumi.yaml").read_text())
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": BASE, "encryptionsalt": "v1:secret"}))
    with empty_state("dev", LAYERS, tmp_path) as pulumi:
        for layer, folder in zip(LAYERS, FOLDERS, strict=True):
            # Its own, not the root's: each `stack init` writes the file, and all run at once.
            copied = yaml.safe_load((pulumi.root / folder / "Pulumi.dev.yaml").read_text())
            assert copied == {"config": BASE}, "the salt belongs to the real backend's passphrase"
            project = yaml.safe_load((pulumi.root / folder / "Pulumi.yaml").read_text())
            assert (project["name"], project["main"]) == (layer, str(tmp_path))
            assert project["stackConfigDir"] == "."


def test_a_budget_refuses_a_plan_and_an_up_before_pulumi_is_asked(
    pulumi_cli: FakePulumi, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"config": {**BASE, "fleet:dollarsPerHour": 5}}
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(InfraError, match=r"\$22.45 an hour, fleet:dollarsPerHour allows \$5"):
        plan("dev", tmp_path)
    assert main(["infra", "up", "dev", "--yes"], tmp_path) == 2
    assert "fix: fewer slices, or a larger fleet:dollarsPerHour" in capfd.readouterr().err
    assert pulumi_cli.calls == []


def test_layers_behind_one_come_up_in_their_order(pulumi_cli: FakePulumi, tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": NO_DATA}))
    pulumi_cli.answer("stack export", {"deployment": {}})
    pulumi_cli.answer("whoami", {"url": "https://example.com/me"})
    assert main(["infra", "up", "dev", "--after", "storage", "--yes"], tmp_path) == 0
    ups = [folder for folder, arguments, _ in pulumi_cli.calls if arguments[0] == "up"]
    assert ups == [str(tmp_path / "infra/layers/network"), str(tmp_path)], "data is off"


def test_layers_go_down_behind_those_that_read_them(pulumi_cli: FakePulumi, tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": NO_DATA}))
    stack = {"urn": "urn:pulumi:dev::tpu::pulumi:pulumi:Stack::tpu-dev", "type": "pulumi:pulumi:Stack"}
    pulumi_cli.answer("stack export", {"deployment": {"resources": [stack]}})
    pulumi_cli.answer("whoami", {"url": "https://example.com/me"})
    assert main(["infra", "down", "dev", "storage", "tpu", "network", "--yes"], tmp_path) == 0
    downs = [folder for folder, arguments, _ in pulumi_cli.calls if arguments[0] == "destroy"]
    assert downs == [
        str(tmp_path),
        *(str(tmp_path / "infra/layers" / name) for name in ("network", "storage")),
    ]


@pytest.mark.parametrize(
    ("slice_", "hourly", "on_demand"),
    [
        ({"acceleratorType": "v6e-16", "zones": ["us-east5-b"], "spot": True}, 16 * 1.4033, 16 * 2.70),
        ({"acceleratorType": "v6e-256", "zones": ["us-east5-b"]}, 256 * 2.70, 256 * 2.70),
        ({"acceleratorType": "v6e-8", "zones": ["europe-west4-a"], "count": 4}, 32 * 2.97, 32 * 2.97),
        ({"acceleratorType": "v6e-8", "zones": ["us-east1-d"], "spot": True}, None, 8 * 2.70),
        ({"acceleratorType": "v6e-8", "zones": ["us-east5-b"], "reserved": True}, None, 8 * 2.70),
    ],
)
def test_a_price_is_chips_times_price_or_unknown(
    slice_: dict[str, object], hourly: float | None, on_demand: float
) -> None:
    slices = [{"name": "a", **slice_}]
    values = {**BASE, "storage:allowCrossRegion": True, "data:throughputMibps": 6400, "tpu:slices": slices}
    (row,) = rows(nodes(parsed(values)))
    assert row.hourly == (None if hourly is None else pytest.approx(hourly))
    assert row.on_demand_hourly == pytest.approx(on_demand)


def test_the_table_adds_up() -> None:
    slices = [
        {"name": "train", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "spot": True},
        {"name": "extract", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 3},
    ]
    text = table(of(parsed({**NO_DATA, "tpu:slices": slices})))
    assert [line.split() for line in text.splitlines()[1:5]] == [
        ["train", "1", "v6e-16", "us-east5-b", "16", "spot", "22.45", "538.87", "16,390.54", "43.20"],
        ["extract", "2", "v6e-8", "us-east5-a", "16", "on", "demand", "43.20", "1,036.80", "31,536.00",
         "43.20"],
        ["extract", "1", "v6e-8", "us-east5-b", "8", "on", "demand", "21.60", "518.40", "15,768.00", "21.60"],
        ["sum", "4", "40", "87.25", "2,094.07", "63,694.54", "108.00"],
    ]  # fmt: skip
    assert "read 2026-08" in text


def test_an_unknown_price_makes_the_sum_unknown() -> None:
    slices = [{"name": "a", "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "reserved": True}]
    text = table(of(parsed({**NO_DATA, "tpu:slices": slices})))
    assert text.splitlines()[2].split() == ["sum", "1", "8", "unknown", "unknown", "unknown", "21.60"]


def test_no_slices_cost_nothing_by_the_hour() -> None:
    text = table(of(parsed({**BASE, "tpu:slices": []})))
    assert text == "No slices, nor anything else that is billed by the hour."


def test_what_preflight_said_is_in_the_plan_and_in_its_comment(
    pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulumi_cli.answer("stack ls", [])
    answers = iter([Verdict("preflight of `train tiny.toml`: fits v6e-16", warn=False)])
    monkeypatch.setattr("infra.slices.preflight.verdict_on", lambda *_: next(answers))
    result = plan("dev")
    assert text(result).count("preflight of `train tiny.toml`: fits v6e-16") == 1
    assert "✅ preflight of `train tiny.toml`: fits v6e-16\n" in markdown(result)
    assert as_json(result)["preflight"] == [
        {"line": "preflight of `train tiny.toml`: fits v6e-16", "warn": False}
    ]
    pulumi_cli.log(warning("no preflight of it yet"), warning("the provider is old"))
    answers = iter([Verdict("no preflight of it yet", warn=True)])
    comment = markdown(plan("dev"))
    assert comment.count("no preflight of it yet") == 1
    assert "⚠️ no preflight of it yet\n" in comment
    assert "⚠️ the provider is old\n" in comment
