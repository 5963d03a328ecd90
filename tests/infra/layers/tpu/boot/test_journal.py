"""Messages of a host's services have a level that journald keeps."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from workload.host import journal


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("workload")
    before = logger.handlers, logger.level
    yield logger.getChild("test")
    logger.handlers, logger.level = before


@pytest.mark.parametrize(("to_journal", "lines"), [(True, "<6>a\n<4>b\n"), (False, "INFO a\nWARNING b\n")])
def test_each_line_has_its_level(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_journal: bool, lines: str
) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        status = os.fstat(stream.fileno())
        name = f"{status.st_dev}:{status.st_ino}" if to_journal else "1:1"  # a parent's, as of a boot script
        monkeypatch.setenv("JOURNAL_STREAM", name)
        journal.configure(stream)
        logger.debug("nothing")
        logger.info("a")
        logger.warning("b")
    assert (tmp_path / "stderr").read_text() == lines
