"""A command without the program around it."""

from collections.abc import Sequence
from pathlib import Path

import click

from infra.settings.sources import ROOT


def call(command: click.Command, words: Sequence[str], root: Path = ROOT) -> int:
    """Parse words and run a command, which raises its errors; the exit status."""
    with command.make_context("tpu", [*words], obj=root) as context:
        return int(command.invoke(context))
