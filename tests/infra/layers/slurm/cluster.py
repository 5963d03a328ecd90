"""Settings of clusters for tests."""

from collections.abc import Mapping
from typing import Any

from infra.engine.settings import parse
from infra.settings.schema import Settings
from infra.settings.sources import as_pulumi_hands_it_over
from tests.infra.recording import BASE

TPU = {
    "name": "tpu", "acceleratorType": "v6e-16", "zone": "us-east5-b",
    "nodeCountStatic": 4, "nodeCountDynamicMax": 12,
}  # fmt: skip
SMALL = {
    "name": "small",
    "acceleratorType": "v6e-8",
    "zone": "us-east5-b",
    "nodeCountDynamicMax": 1,
    "spot": True,
}


def settings(*nodesets: Mapping[str, Any], environment: str = "dev", **more: Any) -> Settings:
    """Return settings with these nodesets; keys are written slurm__zone, or zone for short."""
    named = {key.replace("__", ":") if "__" in key else f"slurm:{key}": value for key, value in more.items()}
    values = {**BASE, "slurm:nodesets": list(nodesets) or [TPU, SMALL], "slurm:bundle": "cd" * 32, **named}
    return parse(environment, as_pulumi_hands_it_over(values, "f"), "f")
