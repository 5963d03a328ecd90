"""Delays of Google's: the emulated cloud lets the usual ones pass, the program waits for the longest ones."""

from dataclasses import astuple
from pathlib import Path

from google_facts import lags
from infra.engine import updates
from infra.google import acting, enabled
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
