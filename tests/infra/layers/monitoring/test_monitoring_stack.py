"""The real CLI brings the monitoring layer up, finds it unchanged, settles it and takes it down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from aiohttp import web

from infra.engine.registry import layers
from infra.layers.monitoring import alerts, metrics
from tests.infra.lab import BUCKET, SETTINGS, Lab
from tests.infra.layers.monitoring.watched import APIS, WATCHED

pytestmark = pytest.mark.prove


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, apis=APIS, currency="EUR")
    yield lab
    assert lab.cloud.world.mistakes == []
    lab.close()


def at_google(lab: Lab) -> list[str]:
    """Return the layer's resources at Google."""
    kinds = ("alertPolicies", "notificationChannels", "dashboards", "metrics", "topics", "budgets")
    return [name for name in lab.cloud.world.directory if name.split("/")[-2] in kinds]


def storage_up(lab: Lab) -> None:
    """Bring up the layer that knows the project's number."""
    lab.pulumi("storage", "stack", "init", "dev")
    lab.pulumi("storage", "up", "-s", "dev", "--yes", "--skip-preview")


def test_it_comes_up_stays_as_it_is_and_leaves_nothing(lab: Lab) -> None:
    account = lab.cloud.world.billing_account.partition("/")[2]
    budget = f"  monitoring:billingAccount: {account}\n  monitoring:budgetPerMonth: 1000\n"
    lab.settings.write_text(SETTINGS + WATCHED + budget)
    yes = ("-s", "dev", "--yes", "--skip-preview")
    storage_up(lab)
    lab.pulumi("monitoring", "stack", "init", "dev")
    assert "+ 55 to create" in lab.pulumi("monitoring", "preview", "-s", "dev"), "no rule is broken"
    lab.pulumi("monitoring", "up", *yes)
    assert len(at_google(lab)) == len(metrics.of(layers())) + len(alerts.of(layers())) + 3 + 3 + 1 + 1
    lab.pulumi("monitoring", "preview", "-s", "dev", "--expect-no-changes")
    lab.pulumi("monitoring", "refresh", *yes, "--expect-no-changes")
    changed = "config:\n  monitoring:alerts: [{name: run-stalled, threshold: 60}]\n"
    lab.settings.write_text(lab.settings.read_text().replace("config:\n", changed, 1))
    assert "~ 1 updated" in lab.pulumi("monitoring", "up", *yes)
    lab.pulumi("monitoring", "destroy", *yes)
    assert at_google(lab) == []


def test_a_channel_that_google_does_not_have_ends_the_plan(lab: Lab) -> None:
    lab.settings.write_text(
        f"{SETTINGS}  monitoring:channels:\n"
        "    - {name: theirs, existing: projects/wire-test/notificationChannels/4711}\n"
    )
    lab.pulumi("monitoring", "stack", "init", "dev")
    output = lab.pulumi("monitoring", "preview", "-s", "dev", fine=False)
    assert "projects/wire-test/notificationChannels/4711" in output
    assert at_google(lab) == []


def test_a_role_that_was_taken_away_is_put_back_by_a_refresh_alone(lab: Lab) -> None:
    """As the runbooks say: a plan compares with the stack's state."""
    lab.infra("up", "dev", "storage", "--yes")
    place = f"storage.googleapis.com/storage/v1/b/{BUCKET}/iam"
    granted = lab.request("GET", place, optionsRequestedPolicyVersion="3").json()
    taken = next(binding for binding in granted["bindings"] if binding["role"] == "roles/storage.objectUser")
    without = {**granted, "bindings": [binding for binding in granted["bindings"] if binding != taken]}
    assert lab.request("PUT", place, without).ok
    lab.pulumi("storage", "preview", "-s", "dev", "--expect-no-changes")
    lab.pulumi("storage", "up", "-s", "dev", "--yes", "--skip-preview", "--refresh")
    assert taken in lab.request("GET", place, optionsRequestedPolicyVersion="3").json()["bindings"]


def test_what_a_killed_up_was_making_is_found_by_its_name(lab: Lab) -> None:
    lab.settings.write_text(SETTINGS + WATCHED)
    storage_up(lab)
    lab.pulumi("monitoring", "stack", "init", "dev")
    up_ = lab.line("monitoring", "up", "-s", "dev", "--yes", "--skip-preview")
    handle = lab.cloud.front_door.handle

    async def kill_then(request: web.Request) -> web.StreamResponse:
        answer = await handle(request)
        if request.method == "POST" and request.path.endswith("/dashboards"):
            lab._kill_at = lab.answered + 1
        return answer

    with mock.patch.object(lab.cloud.front_door, "handle", kill_then):
        assert lab.killed(up_, 10**6)
    before = at_google(lab)
    assert any("/dashboards/" in name or "/notificationChannels/" in name for name in before)
    output = lab.infra("up", "dev", "monitoring", "--yes", "--skip-preview")
    assert "made, and imported" in output
    after = at_google(lab)
    assert set(before) <= set(after)
    shown = [lab.cloud.world.directory[name].get("displayName") for name in after]
    named = [name for name in shown if name]
    assert len(named) == len(set(named)), "nothing was made twice"
    lab.pulumi("monitoring", "preview", "-s", "dev", "--expect-no-changes")
    assert lab.infra("settle", "dev", "monitoring") == "monitoring: nothing to settle\n"
