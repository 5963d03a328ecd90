"""Check that settings are refused."""

from collections.abc import Sequence

import pytest

from workload.errors import ConfigError
from workload.train import config as configs


def check_refused(overrides: Sequence[str], message: str, fix: str = "") -> None:
    """Check that `tiny.toml` with these overrides is refused with this message, and this fix if given."""
    with pytest.raises(ConfigError) as refusal:
        configs.load("tiny.toml", overrides)
    assert message in str(refusal.value)
    assert fix in str(refusal.value)
