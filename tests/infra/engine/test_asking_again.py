"""`up` asks again while all that Google refuses is what a layer names as not yet."""

from pathlib import Path

import pytest
import yaml

from google_facts import lags
from infra.engine import updates as stacks
from infra.engine.registry import layers
from infra.errors import CommandError
from infra.google import client
from infra.settings.sources import ROOT
from tests.infra.conftest import FakePulumi
from tests.infra.recording import BASE
from tests.virtual_time import replace_time

URN = "urn:pulumi:dev::pipeline::tpu:pipeline:Triggers$gcp:eventarc/trigger:Trigger::tpu-pipeline"
OTHER = "urn:pulumi:dev::pipeline::gcp:storage/bucket:Bucket::raw"
STACK = "urn:pulumi:dev::pipeline::pulumi:pulumi:Stack::pipeline-dev"
TOO_NEW = (
    'Invalid resource state for "": Permission denied while using the Eventarc Service Agent. If you '
    "recently started to use Eventarc, it may take a few minutes before all necessary permissions are "
    "propagated to the Service Agent. Otherwise, verify that it has Eventarc Service Agent role."
)
TAKEN = "googleapi: Error 409: The requested bucket name is not available."
ACCOUNT = "tpu-gke-nodes@my-project.iam.gserviceaccount.com"
AGENT = "service-1@gcp-sa-monitoring-notification.iam.gserviceaccount.com"
ACCOUNT_SAID = "a new service account isn't known everywhere yet"
AGENT_SAID = "a service agent of Google's is new, and isn't known everywhere yet"
SAID = "Google's service agents are new, and their roles don't count yet"


@pytest.fixture(name="root")
def _root(tmp_path: Path, pulumi_cli: FakePulumi) -> Path:
    folder = tmp_path / "project"
    for layer in layers():
        path = Path(layer.directory) / "Pulumi.yaml"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text((ROOT / path).read_text())
    (folder / "Pulumi.dev.yaml").write_text(
        yaml.safe_dump({"config": {**BASE, "pipeline:rawBucketName": "my-project-raw"}})
    )
    pulumi_cli.answer("stack export", {"deployment": {}})
    pulumi_cli.answer("whoami", {"url": "https://example.com/me"})
    pulumi_cli.answer("up", status=255)
    return folder


@pytest.fixture(name="slept")
def _slept(pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses; after the second the update succeeds. They take no time, and move the clock on."""
    slept: list[float] = []

    def sleep(pause_s: float) -> None:
        slept.append(pause_s)
        if len(slept) == 2:
            pulumi_cli.answer("up")

    replace_time(monkeypatch, "sleep", sleep)
    replace_time(monkeypatch, "monotonic", lambda: sum(slept))
    return slept


def errors(pulumi: FakePulumi, *messages: tuple[str, str]) -> None:
    """Let the update report these errors of resources, and one of the stack."""
    pulumi.log(
        *(
            {"diagnosticEvent": {"urn": urn, "severity": "error", "message": message}}
            for urn, message in (*messages, (STACK, "<{%reset%}>update failed<{%reset%}>\n"))
        )
    )


def ups(pulumi: FakePulumi) -> int:
    return sum(arguments[0] == "up" for _, arguments, _ in pulumi.calls)


def test_a_refusal_that_is_over_in_minutes_is_waited_for_and_said(
    root: Path, pulumi_cli: FakePulumi, slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    errors(pulumi_cli, (URN, f"error creating Trigger: {TOO_NEW}"), (URN, "1 error occurred"))
    assert stacks.up("dev", ["pipeline"], root, ["--yes"]) == 0
    assert (ups(pulumi_cli), len(slept)) == (3, 2)
    assert caplog.messages == [f"pipeline: {SAID}; retrying for at most 15 min"] * 2


def test_an_api_that_was_enabled_just_now_is_waited_for_in_any_layer(
    root: Path, pulumi_cli: FakePulumi, slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    off = (
        "Error 403: Pub/Sub API has not been used in project 1 before or it is disabled. If you enabled this "
    )
    errors(pulumi_cli, (OTHER, f"{off}API recently, wait a few minutes for the action to propagate"))
    assert stacks.up("dev", ["pipeline"], root, ["--yes"]) == 0
    assert (ups(pulumi_cli), len(slept)) == (3, 2)
    assert "an API that was enabled just now doesn't answer yet" in caplog.messages[0]


@pytest.mark.parametrize(
    ("layer", "message", "reason", "minutes"),
    [
        ("storage", f"Error 400: Service account {ACCOUNT} does not exist.", ACCOUNT_SAID, 7),
        ("storage", f'Error 400: Service account "{ACCOUNT}" does not exist., badRequest', ACCOUNT_SAID, 7),
        (
            "storage",
            "Error 403: Permission 'iam.serviceAccounts.get' denied on resource (or it may not exist).",
            ACCOUNT_SAID, 7,
        ),
        ("network", f"Error 400: Service account {AGENT} does not exist.", AGENT_SAID, 15),
        ("pipeline", f"Error 400: Service account {AGENT} does not exist.", AGENT_SAID, 15),
        (
            "pipeline",
            "Error 403: Unable to retrieve the repository metadata for projects/p/locations/us-east5/"
            "repositories/tpu. Ensure that the Cloud Functions service account has "
            "'artifactregistry.repositories.list' and 'artifactregistry.repositories.get' permissions.",
            SAID, 15,
        ),
        (
            "pipeline",
            'Permission "storage.buckets.get" denied on "Bucket \\"raw\\" could not be validated. Please '
            'verify that the bucket exists and that the Eventarc service account has permission."',
            SAID, 15,
        ),
    ],
)  # fmt: skip
def test_what_google_does_not_know_yet_is_waited_for_as_long_as_it_takes_at_most(
    layer: str, message: str, reason: str, minutes: int, root: Path, pulumi_cli: FakePulumi,
    slept: list[float], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    errors(pulumi_cli, (OTHER, message))
    assert stacks.up("dev", [layer], root, ["--yes"]) == 0
    assert (ups(pulumi_cli), len(slept)) == (3, 2)
    assert caplog.messages[0] == f"{layer}: {reason}; retrying for at most {minutes} min"


def test_an_account_that_never_appears_ends_the_update_after_its_own_time(
    root: Path, pulumi_cli: FakePulumi, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors(pulumi_cli, (URN, TOO_NEW), (OTHER, f"Service account {ACCOUNT} does not exist."))
    replace_time(monkeypatch, "sleep", slept.append)
    with pytest.raises(CommandError, match="known everywhere yet; once they do: tpu up dev pipeline"):
        stacks.up("dev", ["pipeline"], root, ["--yes"])
    assert sum(slept) == lags.ACCOUNT.longest_s < stacks.RETRIED_S


@pytest.mark.parametrize(
    ("layer", "messages"),
    [
        ("storage", [(OTHER, "Error 400: Role roles/nothing is not supported for this resource.")]),
        ("storage", [(OTHER, "Error 403: Permission 'iam.serviceAccounts.setIamPolicy' denied on resource")]),
        ("storage", [(OTHER, "Error 403: Unable to retrieve the repository metadata for projects/p")]),
        ("pipeline", [(URN, TOO_NEW), (OTHER, TAKEN)]),
        ("pipeline", [(URN, TAKEN)]),
        ("pipeline", [(STACK, "a rule is broken")]),
        ("pipeline", []),
        ("storage", [(OTHER, TOO_NEW)]),
    ],
)
def test_what_is_not_over_by_itself_ends_the_update_at_once(
    layer: str, messages: list[tuple[str, str]], root: Path, pulumi_cli: FakePulumi, slept: list[float]
) -> None:
    errors(pulumi_cli, *messages)
    with pytest.raises(CommandError, match=f"`pulumi up` of {layer} failed"):
        stacks.up("dev", [layer], root, ["--yes"])
    assert (ups(pulumi_cli), slept) == (1, [])


def test_it_ends_after_a_quarter_of_an_hour_and_says_what_to_type(
    root: Path, pulumi_cli: FakePulumi, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors(pulumi_cli, (URN, TOO_NEW))
    replace_time(monkeypatch, "sleep", slept.append)
    monkeypatch.setattr(stacks, "PAUSE_S", 150)
    with pytest.raises(CommandError, match=f"fix: {SAID}; once they do: tpu up dev pipeline"):
        stacks.up("dev", ["pipeline"], root, ["--yes"])
    assert sum(slept) == stacks.RETRIED_S == 900


def test_a_saved_plan_is_applied_once(root: Path, pulumi_cli: FakePulumi, slept: list[float]) -> None:
    errors(pulumi_cli, (URN, TOO_NEW))
    (root / "pipeline.json").touch()
    with pytest.raises(CommandError, match="make it again: tpu plan dev pipeline"):
        stacks.up("dev", ["pipeline"], root, ["--yes"], plans=root)
    assert (ups(pulumi_cli), slept) == (1, [])


def fix_of(layer: str, root: Path) -> list[str]:
    """Bring a layer up, which must fail; return the lines behind the error's first."""
    with pytest.raises(CommandError) as failed:
        stacks.up("dev", [layer], root, ["--yes"])
    return str(failed.value).splitlines()[1:]


def test_a_secret_that_is_missing_ends_the_update_with_the_commands_that_mend_it(
    root: Path, pulumi_cli: FakePulumi, slept: list[float]
) -> None:
    refused = "googleapi: Error 404: Secret [projects/1/secrets/hf-token] not found."
    errors(pulumi_cli, (OTHER, f"Error creating SecretIamMember: {refused}, notFound"))
    assert fix_of("storage", root) == [
        "    fix: printf %s VALUE | gcloud secrets create hf-token --project=my-project --data-file=-, "
        "then tpu up dev storage"
    ]
    assert not slept


def test_a_login_that_may_not_act_as_an_account_learns_the_setting_with_its_own_address(
    root: Path, pulumi_cli: FakePulumi, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "member", lambda _: "user:ada@example.com")
    account = "tpu-pipeline-run@my-project.iam.gserviceaccount.com"
    on = f"resource '//iam.googleapis.com/projects/my-project/serviceAccounts/{account}'"
    errors(pulumi_cli, (OTHER, f"Error 403: Permission 'iam.serviceAccounts.actAs' denied on {on}"))
    assert fix_of("pipeline", root) == [
        "    fix: grant roles/iam.serviceAccountUser on the pipeline's accounts: "
        "user:ada@example.com in pipeline:accountUsers, then tpu up dev pipeline"
    ]
    assert not slept
