"""The page about the emulation names the methods that there are."""

from __future__ import annotations

import re
from pathlib import Path

from storage_front import Front

PAGE = Path(__file__).parents[4] / "docs" / "internals" / "storage-emulation.md"


def test_the_table_is_the_code(front: Front) -> None:
    rows = dict(re.findall(r"^\| (storage\.\S+) \| (\S+?),? .*\|$", PAGE.read_text(), re.MULTILINE))
    code = {
        name: method.permission or ("none" if name.endswith("testIamPermissions") else "handler")
        for name, method in front.service.methods().items()
    }
    assert rows == code
