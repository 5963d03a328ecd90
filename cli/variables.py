"""`--env` and `--secret`, which several commands take: parsed, and checked against Secret Manager."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from cli.options import combined
from infra.core.secrets import Reader, problems
from infra.errors import InputError, listed
from infra.google.client import Client
from infra.layers.storage.names import hosts
from infra.settings.schema import Settings
from infra.settings.variables import Variables, of_options

options = combined(
    click.option("--env", "env", multiple=True, metavar="NAME=VALUE",
                 help="Environment variable of the program; repeatable."),
    click.option("--secret", "secrets", multiple=True, metavar="[NAME=]SECRET[@VERSION]",
                 help="Environment variable with a secret of Secret Manager; repeatable."),
)  # fmt: skip


def read(env: Sequence[str], secrets: Sequence[str]) -> Variables:
    """Parse the values of both options. Raises InputError with all problems."""
    variables, wrong = of_options(env, secrets)
    if wrong:
        raise InputError(listed("the command", wrong))
    return variables


def require_readable(settings: Settings, variables: Variables, reader: Reader | None = None) -> None:
    """Raise InputError for secrets that aren't there, or that a reader, by default hosts, may not read."""
    if not variables.references:
        return
    google = Client(settings.project)
    note, reader = partial(click.echo, err=True), reader or hosts(settings)
    if wrong := list(problems(google, settings, variables.references, reader, note)):
        raise InputError(listed("the command", wrong))
