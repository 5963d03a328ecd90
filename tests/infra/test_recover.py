"""Only what Google said is gone is brought back."""

import json
from typing import Any

import pytest

from infra.recover import findings, main
from tests.infra.conftest import FakePulumi, node_state

URN = "urn:pulumi:dev::tpu::tpu:tpu:TpuSlice$gcp:tpu/v2Vm:V2Vm::"
STATES = [  # every state of the TPU API
    "STATE_UNSPECIFIED", "CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED",
    "STOPPING", "STARTING", "PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN",
]  # fmt: skip


def serve(cli: FakePulumi, *resources: list[dict[str, Any]]) -> None:
    cli.answer("stack ls", [{"name": "dev"}])
    cli.answer("stack export", {"deployment": {"resources": [one for some in resources for one in some]}})


@pytest.mark.parametrize("state", [*STATES, "", "SOMETHING_NEW"])
def test_only_two_states_lead_to_a_replacement(state: str) -> None:
    (finding,) = findings(node_state("a", state))
    assert finding.action == ("replace" if state in ("PREEMPTED", "TERMINATED") else "leave")
    assert finding.urn == URN + "a"


def test_a_node_that_google_does_not_know_is_created() -> None:
    (finding,) = findings(node_state("a", None))
    assert (finding.action, finding.urn) == ("create", URN + "a")


def test_what_is_being_deleted_is_no_node() -> None:
    old = node_state("a", "PREEMPTED", component=False, delete=True)
    assert [finding.action for finding in findings(node_state("a", "READY") + old)] == ["leave"]


def test_replaces_the_preempted_ones_alone(pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]) -> None:
    serve(pulumi_cli, node_state("a", "PREEMPTED"), node_state("b", "READY"), node_state("c", None))
    assert main(["dev", "--yes"]) == 0
    assert pulumi_cli.commands() == ["stack ls", "refresh", "stack export", "up"]
    quiet = ["--yes", "--skip-preview", "--non-interactive"]
    assert pulumi_cli.calls[1][1] == ["refresh", "--stack", "dev", *quiet]
    targets = ["--target-replace", URN + "a", "--target", URN + "c"]
    assert pulumi_cli.calls[3][1] == ["up", "--stack", "dev", *quiet, "--continue-on-error", *targets]
    said = capfd.readouterr().out.splitlines()
    assert "3 slice(s) in dev:" in said
    assert "  replace  a: Google says PREEMPTED: delete and create it again" in said
    assert "  leave    b: Google says READY: left alone" in said
    assert "  create   c: Google knows no such node: create it" in said
    assert said[-1] == "brought back 2 slice(s)"


def test_nothing_to_do_changes_nothing(pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]) -> None:
    serve(pulumi_cli, node_state("a", "READY"), node_state("b", "REPAIRING"))
    assert main(["dev", "--yes"]) == 0
    assert "up" not in pulumi_cli.commands()
    assert capfd.readouterr().out.splitlines()[-1] == "nothing to bring back"


def test_json_has_the_findings_alone(pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]) -> None:
    serve(pulumi_cli, node_state("a", "TERMINATED"))
    assert main(["dev", "--yes", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {
        "environment": "dev",
        "slices": [{"name": "a", "urn": URN + "a", "state": "TERMINATED", "action": "replace"}],
    }
    assert "plan of" in captured.err, "Pulumi's own output goes to stderr"


def test_a_failed_refresh_is_no_reason_to_replace(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    serve(pulumi_cli, node_state("a", "PREEMPTED"))
    pulumi_cli.answer("refresh", status=255, err="error: 503 from tpu.googleapis.com")
    assert main(["dev", "--yes"]) == 1
    assert "up" not in pulumi_cli.commands()
    assert capfd.readouterr().err.splitlines()[-1] == (
        "error: `pulumi refresh` of tpu failed; what it said is above"
    )


def test_a_failed_up_is_an_error(pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]) -> None:
    serve(pulumi_cli, node_state("a", "PREEMPTED"))
    pulumi_cli.answer("up", status=255, err="error: no more capacity in the zone")
    assert main(["dev", "--yes"]) == 1
    assert "error: `pulumi up` of tpu failed; what it said is above" in capfd.readouterr().err


def test_asks_before_it_changes_anything(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(pulumi_cli, node_state("a", "PREEMPTED"))
    assert main(["dev"]) == 1
    assert capfd.readouterr().err.splitlines()[-1] == (
        "error: 1 slice(s) would be brought back; without a terminal to ask, add --yes"
    )
    monkeypatch.setattr("sys.stdin", _Terminal("n\n"))
    assert main(["dev"]) == 1
    assert capfd.readouterr().err.splitlines()[-1].endswith("error: nothing was changed")
    assert "up" not in pulumi_cli.commands()
    monkeypatch.setattr("sys.stdin", _Terminal("y\n"))
    assert main(["dev"]) == 0
    assert pulumi_cli.commands()[-1] == "up"


class _Terminal:
    def __init__(self, line: str):
        self.line = line

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self.line


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"out": [{"name": "prod"}]},
            "error: there is no stack dev of tpu yet: pulumi up -s dev",
        ),
        (
            {"status": 255, "err": "warning: x\nerror: PULUMI_ACCESS_TOKEN must be set"},
            "error: `pulumi stack` of tpu failed: error: PULUMI_ACCESS_TOKEN must be set",
        ),
    ],
)
def test_without_a_stack(
    pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str], answer: dict[str, Any], said: str
) -> None:
    pulumi_cli.answer("stack ls", answer.pop("out", ""), **answer)
    assert main(["dev", "--yes"]) == 1
    assert capfd.readouterr().err.splitlines()[-1] == said
    assert pulumi_cli.commands() == ["stack ls"]


def test_without_pulumi(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["dev", "--yes"]) == 1
    assert capfd.readouterr().err == (
        "error: pulumi is not on PATH: run `make setup`, then use make, or .venv/bin first on PATH\n"
    )
