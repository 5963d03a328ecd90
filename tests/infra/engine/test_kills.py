"""Bare `pulumi` commands after a kill, by the real CLI; `python -m tests.proofs updates` kills everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.lab import Lab

pytestmark = [pytest.mark.prove, pytest.mark.slow]
WITHOUT_ASKING = ("--yes", "--skip-preview")
UP = ("up", "-s", "dev", *WITHOUT_ASKING)
DESTROY = ("destroy", "-s", "dev", *WITHOUT_ASKING)


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, apis=("compute.googleapis.com",))
    yield lab
    lab.close()


def test_bare_commands_after_a_kill_name_the_one_that_helps_and_lose_nothing(lab: Lab) -> None:
    lab.pulumi("data", "stack", "init", "dev")
    assert lab.killed(lab.line("data", *UP), 2)
    made = lab.living()
    assert made
    readable(lab)
    lab.pulumi("data", "cancel", "--yes", "-s", "dev")
    output = lab.pulumi("data", *UP, fine=False)
    assert "a `pulumi` was killed while creating Disk us-east5-a" in output
    assert "fix: tpu infra settle dev data" in output
    assert "Traceback" not in output
    # It calls deleted what it doesn't know, and only warns; its record of that stays.
    assert "interrupted while creating" in lab.pulumi("data", *DESTROY)
    assert lab.living() == made
    output = lab.infra("down", "dev", "data", *WITHOUT_ASKING)
    assert output.count("made, and imported") == len(made)
    assert lab.living() == set()
    assert "data: nothing is up" in lab.infra("down", "dev", "data", *WITHOUT_ASKING)


def readable(lab: Lab) -> None:
    """Remove what a kill left empty: only its instant decides whether bare commands can read the state."""
    for path in (lab.folder / "state/.pulumi").rglob("*.attrs"):
        if not path.read_bytes():
            path.unlink()
