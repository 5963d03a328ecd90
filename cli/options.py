"""Arguments and options that several commands share, and the types of their values."""

import math
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from infra.core import layer as core_layer
from infra.errors import InputError
from infra.settings.schema import Settings
from infra.settings.sources import ROOT, environments
from settings_schema.rules import SCHEME

F = TypeVar("F", bound=Callable[..., Any])


class Environment(click.ParamType[str, str]):
    """The name of an environment; completed from the settings files."""

    name = "environment"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """List the environments whose names begin as typed."""
        names = environments(ROOT)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Names(click.ParamType[tuple[str, ...], Any]):
    """Names, separated by commas."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split the text."""
        return value if isinstance(value, tuple) else tuple(value.split(","))


class LocalPath(click.Path):
    """A path of this machine, no URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if SCHEME.match(os.fspath(value)):
            fix = "a path here; gcloud storage cp copies from and to a bucket"
            self.fail(f"{value}: must be a path of this machine\n    fix: {fix}", param, ctx)
        return super().convert(value, param, ctx)


class Positive(click.ParamType[float, Any]):
    """A finite number above 0."""

    name = "number"

    def __init__(self, rule: str):
        self._rule = rule

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"{value}: {self._rule}", param, ctx)
        return number


class Age(click.ParamType[timedelta, Any]):
    """A time span such as 90s, 30m, 6h or 2d."""

    name = "age"
    _UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # noqa: RUF012 - a table

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the span."""
        match = re.fullmatch(r"([0-9]+)([smhd])", value)
        if not match or int(match[1]) == 0:
            self.fail(f"{value} is no age: 90s, 30m, 6h or 2d", param, ctx)
        return timedelta(seconds=int(match[1]) * self._UNITS[match[2]])


COUNT = click.IntRange(1)
PATH = LocalPath(path_type=Path)
SECONDS = click.IntRange(1, 30 * 86_400)
HOURS = Positive("a number of hours above 0, e.g. 1.5")
PORT = click.IntRange(0, 2**16 - 1)

environment = click.argument(
    "environment", metavar="ENV", type=Environment(), help="dev, prod, …: the settings in Pulumi.ENV.yaml"
)
layers = click.argument("layers", metavar="[LAYER]...", nargs=-1, help="only these layers")
yes = click.option("--yes", is_flag=True, help="Skip the question; required without a terminal.")
unasked = click.option("--yes", is_flag=True, expose_value=False, help="As elsewhere; nothing is asked here.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
layout = click.option(
    "--format", "layout", type=click.Choice(["text", "markdown"]), default="text", show_default=True,
    help="markdown: a comment for CI.",
)  # fmt: skip
hours = click.option(
    "--hours", type=HOURS, metavar="N", help="Expected duration, for the price; it doesn't end the run."
)


def with_layer(layer: str, section: type, settings: Settings) -> Settings:
    """Return settings that have the section of a layer. Raises InputError if the layer is off."""
    if settings.get(section) is None:
        raise InputError(core_layer.off(layer, settings.environment))
    return settings


def combined(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that applies several, in their order."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate
