"""docs/cloud.md says which methods there are."""

from __future__ import annotations

import re
from pathlib import Path

from tools.cloud_coverage import table

ROOT = Path(__file__).parents[3]


def test_the_documented_methods_are_those_that_are_emulated() -> None:
    written = re.search(
        r"<!-- methods: [^>]* -->\n(.*?)\n<!-- /methods -->", (ROOT / "docs/cloud.md").read_text(), re.S
    )
    assert written
    assert written[1] == table(), "python -m tools.cloud_coverage prints what belongs between the marks"
