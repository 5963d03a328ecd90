"""Log lines of a command on standard error, with the fields of each record."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

LEVELS = ("debug", "info", "warning", "error")
_FLEET = logging.getLogger("fleet")


class _Handler(logging.Handler):
    """Print records to standard error as it is now, which a live display replaces."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; its attribute `fields` follows as key=value."""
        fields = getattr(record, "fields", {})
        print(
            self.format(record),
            *(f"{key}={text}" for key, text in fields.items()),
            file=sys.stderr,
            flush=True,
        )


_HANDLER = _Handler()
_HANDLER.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))


@contextmanager
def logged(level: str | None) -> Iterator[None]:
    """Print log lines of a level and above while a command runs.

    Args:
        level: one of LEVELS; None: warnings, of the fleet only errors, since its commands print its events.
    """
    root = logging.getLogger()
    before = root.level, _FLEET.level
    root.setLevel((level or "warning").upper())
    _FLEET.setLevel((level or "error").upper())
    root.addHandler(_HANDLER)
    try:
        yield
    finally:
        root.removeHandler(_HANDLER)
        root.setLevel(before[0])
        _FLEET.setLevel(before[1])


def _of_command(ctx: click.Context, _: click.Parameter, level: str | None) -> None:
    ctx.with_resource(logged(level))


def _of_monitor(_: click.Context, __: click.Parameter, level: str | None) -> None:
    """Log a monitor's events unless a dashboard shows them."""
    if level or not sys.stdout.isatty():
        _FLEET.setLevel((level or "info").upper())


def _option(callback: Any, text: str) -> Any:
    return click.option(
        "--log-level", type=click.Choice(LEVELS), callback=callback, expose_value=False, help=text
    )


option = _option(_of_command, "Print log lines of this level and above; default: warning.")
monitor_option = _option(
    _of_monitor, "Print events of this level and above; default: info, at a terminal error."
)
