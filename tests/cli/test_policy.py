"""`tpu policy` on what is stored, against a Pulumi out of dictionaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli import policy
from infra.errors import CommandError, InfraError
from tests.cli.call import call
from tests.infra.recording import BASE, parsed

FIREWALL, BUCKET = "gcp:compute/firewall:Firewall", "gcp:storage/bucket:Bucket"
OPEN: dict[str, Any] = {
    "type": FIREWALL, "urn": f"urn:pulumi:dev::network::{FIREWALL}::way-in",
    "inputs": {"direction": "INGRESS", "targetTags": ["tpu"], "sourceRanges": ["0.0.0.0/0"]},
}  # fmt: skip
UNTIL = str(datetime.now(UTC).date() + timedelta(days=30))
EXCEPTION = {"rule": "N04", "resource": "way-in", "reason": "a demonstration", "until": UNTIL}
Check = Callable[..., int]


@pytest.fixture(name="check")
def _check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs the command with some resources in the stack of network; None: no stack has any."""

    def check(resources: list[Mapping[str, Any]] | None, *words: str, **more: Any) -> int:
        class Pulumi:
            def __init__(self, *_: Any) -> None: ...

            def export(self, layer: str) -> dict[str, Any] | None:
                if resources is None:
                    return None
                return {"deployment": {"resources": resources if layer == "network" else []}}

        values = {**BASE, **{key.replace("__", ":"): value for key, value in more.items()}}
        known = parsed(values)
        monkeypatch.setattr(policy, "from_file", lambda *_: known)
        monkeypatch.setattr(policy, "Pulumi", Pulumi)
        return call(policy.policy, ["dev", *words])

    return check


def test_what_is_stored_and_breaks_a_rule_fails_where_rules_are_mandatory(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check([OPEN]) == 1
    finding = f"network: {FIREWALL} way-in = sourceRanges: 0.0.0.0/0"
    shown = capsys.readouterr().out
    assert finding in shown
    assert shown.endswith("1 finding\n")
    assert check([OPEN], policy__enforcement="advisory") == 0
    assert finding in capsys.readouterr().out
    assert check([OPEN], "--json") == 1
    assert [finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]] == ["N04"]


def test_what_is_about_to_be_deleted_breaks_no_rule(check: Check) -> None:
    mapping = {
        "type": "pulumi:pulumi:Stack",
        "urn": "urn:pulumi:dev::network::pulumi:pulumi:Stack::network-dev",
    }
    assert check([mapping, {**OPEN, "delete": True}]) == 0


@pytest.mark.parametrize("state", [None, []])
def test_where_nothing_is_up_no_finding_is_no_pass(check: Check, state: list[Any] | None) -> None:
    with pytest.raises(
        CommandError, match=r"so nothing was checked\n    fix: tpu policy dev --preview, which"
    ):
        check(state)
    with pytest.raises(CommandError, match="nothing is up of storage in dev"):
        check([OPEN], "storage")


def test_an_exception_allows_it_until_its_date(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert check([OPEN], policy__exceptions=[EXCEPTION]) == 0
    assert f"way-in, N04: allowed until {UNTIL}: a demonstration" in capsys.readouterr().out
    with pytest.raises(InfraError, match="an exception ends on its date"):
        check([OPEN], policy__exceptions=[{**EXCEPTION, "until": "2025-12-31"}])


def test_options_of_what_is_stored_are_checked_too(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = {"uniformBucketLevelAccess": True, "publicAccessPrevention": "enforced", "forceDestroy": False}
    mapping = {
        "type": BUCKET,
        "urn": f"urn:pulumi:dev::network::{BUCKET}::raw",
        "inputs": bucket,
        "protect": True,
    }
    assert check([mapping]) == 0
    assert check([{**mapping, "protect": False}]) == 1
    assert "protect: false" in capsys.readouterr().out
    assert check([{**mapping, "retainOnDelete": True}]) == 1
    assert "AbortIncompleteMultipartUpload" in capsys.readouterr().out


def test_a_layer_that_is_off_has_nothing_to_check(check: Check) -> None:
    with pytest.raises(CommandError, match="gke"):
        check([], "gke")
