"""Delays of Google's: the emulated cloud lets the usual ones pass, the program waits for the longest ones."""

import re
from dataclasses import astuple
from pathlib import Path

import pytest

from google_facts import lags
from infra.engine import updates
from infra.google import acting, enabled
from infra.layers.tpu import startup
from rehearsal.cloud.core.world import Lags
from tests.emulated import Emulated


def test_the_program_waits_longer_than_a_change_usually_takes() -> None:
    waits_s = {
        lags.GRANT: acting.PATIENCE_S,
        lags.ACCOUNT: acting.PATIENCE_S,
        lags.API: enabled.PATIENCE_S,
        lags.AGENT: updates.RETRIED_S,
        lags.METRIC: updates.RETRIED_S,
    }
    assert all(lag.usual_s < lag.longest_s <= wait_s for lag, wait_s in waits_s.items())


@pytest.mark.parametrize("stage", ["bundle", "mount-checkpoints"])
def test_a_hosts_boot_waits_as_long_for_a_grant(stage: str) -> None:
    main = (Path(startup.__file__).parent / "parts" / "main.sh").read_text()
    (patience_s,) = re.findall(rf"^run_stage {stage} (\d+)$", main, re.MULTILINE)
    assert int(patience_s) >= lags.GRANT.longest_s


def test_the_emulated_cloud_lets_googles_times_pass_on_its_clock(tmp_path: Path) -> None:
    usual = (lags.GRANT, lags.ACCOUNT, lags.API, lags.AGENT, lags.METRIC)
    cloud = Emulated(tmp_path, lags=Lags(), clock_rate=0.0)
    resource, reads = f"projects/{cloud.world.project}", "tpu.nodes.get"
    try:
        assert astuple(cloud.world.lags) == tuple(lag.usual_s for lag in usual)
        cloud.grant(resource, "roles/tpu.viewer", "user:new@example.com")
        cloud.call(cloud.world.clock.jump(lags.GRANT.usual_s - 1))
        assert not cloud.iam.allowed("new@example.com", reads, resource)
        cloud.call(cloud.world.clock.jump(1))
        assert cloud.iam.allowed("new@example.com", reads, resource)
    finally:
        cloud.close()
