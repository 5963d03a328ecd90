"""A stack that an earlier version brought up, by this one's program: nothing of it is replaced or deleted.

declared.json has the settings, and what the version declared by them: of each resource its type, name and
parent, which are its URN, and the inputs that Google never changes in place. `python -m tests.upgrade.record`
writes it; do that at a release, from the released tree, and never to make this test pass.
"""

import json
from pathlib import Path

import pytest

from tests.upgrade.record import Declared, declared

EARLIER = json.loads(Path(__file__).with_name("declared.json").read_text("utf-8"))


def _lost(earlier: Declared, now: Declared) -> list[str]:
    return [f"deleted: {urn}" for urn in earlier if urn not in now] + [
        f"replaced: {urn}: {key}: {value} -> {now[urn].get(key)}"
        for urn, fixed in earlier.items()
        for key, value in fixed.items()
        if urn in now and now[urn].get(key) != value
    ]


@pytest.mark.parametrize("layer", EARLIER["declared"])
def test_an_earlier_stack_loses_nothing(layer: str) -> None:
    earlier = EARLIER["declared"][layer]
    assert len(earlier) > 3
    assert _lost(earlier, declared(layer, EARLIER["settings"])) == []


def test_a_rename_and_a_move_are_seen() -> None:
    earlier = {"bucket": {"location": "US-EAST5"}, "network": {"name": "n"}}
    moved = {"bucket": {"location": "US-WEST1"}, "net": {"name": "n"}}
    assert _lost(earlier, moved) == ["deleted: network", "replaced: bucket: location: US-EAST5 -> US-WEST1"]
