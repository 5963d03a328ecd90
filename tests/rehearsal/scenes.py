"""A scene without a world, for tests of single steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.record import Record
from rehearsal.scenario.scene import Scene


def scene_of(**parts: Any) -> Scene:
    """A scene of these parts, whose waits look five times and don't sleep."""

    def wait_until(what: str, result: Any, timeout_s: float, poll_s: float = 0.5) -> Any:
        for _ in range(5):
            if answer := result():
                return answer
        raise ScenarioFailed(f"{what}: {scene.note.text}")

    scene = SimpleNamespace(
        program=None,
        environment="dev",
        note=SimpleNamespace(text=""),
        record=Record("s", "t", "dev", 1, 0.0),
        wait_until=wait_until,
        **parts,
    )
    return cast("Scene", scene)
