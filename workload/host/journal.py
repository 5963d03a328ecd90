"""Logging of the host's services to standard error, with levels that journald and Cloud Logging keep."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

# syslog(3) priorities, which journald reads from a prefix of each line (sd-daemon(3)).
_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"<{_PRIORITIES[record.levelname]}>{super().format(record)}"


def configure(stream: TextIO | None = None) -> None:
    """Write the workload's messages from level INFO on to `stream` (default: standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    if _is_journal(handler.stream):
        handler.setFormatter(_Formatter("%(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("workload")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def _is_journal(stream: TextIO) -> bool:
    """Compare the stream with $JOURNAL_STREAM, as systemd.exec(5) describes."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
