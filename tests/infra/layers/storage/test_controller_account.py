"""The controller's account by the real Pulumi CLI: on, off and on again, and after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from aiohttp import web

from rehearsal.cloud.core.world import Lags
from tests.infra.engine.test_kills import UP, WITHOUT_ASKING
from tests.infra.lab import PROJECT, SETTINGS, Lab

pytestmark = [pytest.mark.prove, pytest.mark.slow]
ON = """\
  storage:controllerAccountId: tpu-fleet
  storage:controllerAccountUsers: ["user:sre@example.com"]
"""
# What tells an up that an API answers.
WAITED_FOR = {
    "compute.regions.list",
    "iam.projects.serviceAccounts.list",
    "tpu.projects.locations.list",
}
_FOREVER_S = 1e6
OFF = "accessNotConfigured"
ROLE, EMAIL = f"projects/{PROJECT}/roles/tpu_fleet", f"tpu-fleet@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, lags=replace(Lags(), api_s=_FOREVER_S))
    with mock.patch.object(lab.world.clock, "now", apis_answer_once_it_waits(lab)):
        lab.pulumi("storage", "stack", "init", "dev")
        switch(lab, on=True)
        yield lab
        lab.close()


def switch(lab: Lab, *, on: bool) -> None:
    """Write the setting or take it out; what Pulumi has written below it stays."""
    first = "  tpu:slices:\n"
    text = lab.settings.read_text().replace(ON, "")
    assert first in text
    lab.settings.write_text(text.replace(first, f"{ON}{first}") if on else text)


def refused_as_off(lab: Lab) -> set[str]:
    """Methods that were refused since their API had just been enabled."""
    log = lab.cloud.requests.since(0)["requests"]
    return {item["method_id"] for item in log if item["reason"] == OFF}


def apis_answer_once_it_waits(lab: Lab) -> Callable[[], float]:
    """A clock by which no API that is enabled answers before one that is waited for has refused."""
    now = lab.world.clock.now

    def jump_at_each_refusal() -> float:
        log = lab.cloud.requests.since(0)["requests"]
        waiting = [item for item in log if item["method_id"] in WAITED_FOR and item["reason"] == OFF]
        return now() + _FOREVER_S * len(waiting)

    return jump_at_each_refusal


def nothing_left(lab: Lab) -> None:
    lab.pulumi("storage", "preview", "-s", "dev", "--refresh", "--expect-no-changes")


def role(lab: Lab) -> dict[str, object]:
    return {"deleted": False, **lab.request("GET", f"iam.googleapis.com/v1/{ROLE}").json()}


def test_it_is_switched_on_off_and_on_again(lab: Lab) -> None:
    lab.pulumi("storage", *UP)
    assert refused_as_off(lab) <= WAITED_FOR
    assert EMAIL in lab.pulumi("storage", "stack", "output", "-s", "dev")
    assert role(lab)["deleted"] is False
    nothing_left(lab)
    switch(lab, on=False)
    lab.pulumi("storage", *UP)
    assert role(lab)["deleted"] is True
    assert not [item for item in lab.living() if EMAIL in item]
    switch(lab, on=True)
    lab.pulumi("storage", *UP)
    assert role(lab)["deleted"] is False
    nothing_left(lab)


@pytest.mark.parametrize(("method", "end"), [("POST", "/roles"), ("PUT", "-checkpoints/iam")])
def test_an_up_killed_at_what_it_grants_is_taken_in(lab: Lab, method: str, end: str) -> None:
    """Killed once the role is made, and once the policy with a condition is written."""
    handle = lab.cloud.front_door.handle

    async def kill_then(request: web.Request) -> web.StreamResponse:
        answer = await handle(request)
        own = b"reports and manifests" in await request.read() or method == "POST"
        if request.method == method and request.path.endswith(end) and own:
            lab._kill_at = lab.answered + 1
        return answer

    with mock.patch.object(lab.cloud.front_door, "handle", kill_then):
        assert end in lab.killed(lab.line("storage", *UP), 10**6)
    output = lab.infra("up", "dev", "storage", *WITHOUT_ASKING)
    assert "made, and imported" in output
    nothing_left(lab)
    assert SETTINGS.splitlines()[0] in lab.settings.read_text()
