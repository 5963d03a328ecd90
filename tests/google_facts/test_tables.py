"""Every block of every table has a source and the day it was read."""

import datetime
from pathlib import Path

import pytest

import google_facts

TABLES = sorted(path.stem for path in Path(google_facts.__file__).parent.glob("*.toml"))


@pytest.mark.parametrize("name", TABLES)
def test_blocks_have_a_source_and_a_date(name: str) -> None:
    blocks = google_facts.table(name)
    assert blocks
    for block, values in blocks.items():
        assert "://" in values["source"], block
        assert datetime.date.fromisoformat(values["read"]) <= datetime.date.today(), block
        assert len(values) > 2, block
