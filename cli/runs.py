"""`tpu runs`: the runs of an environment, and the page of one or two."""

import json
import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from time import sleep, time

import click

from cli import options
from cli.command import Group
from cli.stored_runs import Price, Runs, nothing
from fleet.page import logs_url
from infra.engine.settings import from_file
from infra.errors import CommandError, InputError
from infra.google.client import Client, RequestError
from infra.layers.queue.settings import QueueSettings
from infra.layers.slurm.settings import SlurmSettings
from infra.layers.storage.settings import StorageSettings
from infra.prices.row import dollars
from infra.settings.schema import Settings
from views.table import aligned
from workload.errors import RunError, WorkloadError
from workload.runs.history import Brief, History, RunReader
from workload.runs.location import RUN
from workload.runs.page import Shown, best, number, page, share

_EVERY_S = 30
_PAGES = Path("run-pages")
_EPILOG = """\b
Examples:
  tpu runs dev                       state, step, loss, tokens/s, goodput, cost
  tpu runs show dev tiny --follow    the page of a run, until it ends
  tpu runs show dev tiny wide        two runs over one another
"""


class _Runs(Group):
    """`tpu runs ENV` is `tpu runs list ENV`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names; `list` for an environment."""
        known = args[0] in (*self.commands, "help") or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["list", *args])


@click.group(cls=_Runs, epilog=_EPILOG)
def runs() -> None:
    """List the runs of an environment's checkpoint bucket, and show their pages."""


@runs.command("list", examples=["dev", "dev --json"])
@options.environment
@options.as_json
@click.pass_obj
def list_runs(root: Path, environment: str, as_json: bool) -> int:
    """List runs with state, step, loss, tokens/s, goodput and cost; `tpu runs ENV` does the same."""
    stored = _stored(_settings(environment, root))
    briefs = stored.briefs()
    prices = [stored.price(brief) for brief in briefs]
    if as_json:
        print(json.dumps([
            {**asdict(brief), "dollars": price.so_far(brief), "predicted_dollars": price.predicted(brief),
             "paid": price.paid}
            for brief, price in zip(briefs, prices, strict=True)
        ]))  # fmt: skip
    elif not briefs:
        print(f"no runs in {stored.url}\n  next: {nothing(environment)}")
    else:
        head = ("run", "state", "step", "loss", "best", "tokens/s", "goodput/run", "cost/run", "written")
        rows = [head, *(_cells(brief, price) for brief, price in zip(briefs, prices, strict=True))]
        if not any(brief.best for brief in briefs):
            rows = [(*row[:4], *row[5:]) for row in rows]
        print("\n".join(aligned(rows)))
        print("/run: of all starts, by the run's clock; tpu status has the last start, and nodes by Google's")
    return 0


@runs.command(examples=["dev tiny", "dev tiny wide --out both.html"])
@options.environment
@click.argument("run", metavar="RUN", help="its name, as in tpu runs ENV")
@click.argument("other", metavar="[RUN2]", required=False, help="a second one, drawn over it")
@click.option("--follow", "-f", is_flag=True, help=f"Read again every {_EVERY_S} s until the run has ended.")
@click.option("--out", type=options.PATH, metavar="FILE",
              help=f"The page's file; default: {_PAGES}/ENV-RUN.html.")  # fmt: skip
@click.option("--no-open", is_flag=True, help="Only write the page; open no browser.")
@click.pass_obj
def show(
    root: Path, environment: str, run: str, other: str | None, follow: bool, out: Path | None, no_open: bool
) -> int:
    """Write and open the page of a run, or of two over one another: curves, time, price, settings."""
    settings, names = _settings(environment, root), [run, other] if other else [run]
    for name in names:
        if not RUN.fullmatch(name):
            rule = "a-z, 0-9, '-', '_' and '.', first a letter or digit"
            raise InputError(
                f"RUN: {name!r} must be {rule}\n    fix: a name that tpu runs {environment} lists"
            )
    return _Page(
        settings, _stored(settings), names, out or _PAGES / f"{environment}-{'-'.join(names)}.html"
    ).run(follow, not no_open)


class _Page:
    """The page of one run or two, in a file."""

    def __init__(self, settings: Settings, stored: Runs, names: Sequence[str], out: Path):
        self._settings, self._stored, self._names, self._out = settings, stored, names, out
        self._readers = self._opened()
        self._last: list[History] = []
        self._written = False

    def _opened(self) -> list[RunReader]:
        return [RunReader(self._stored.reader(name), name) for name in self._names]

    def run(self, follow: bool, opens: bool) -> int:
        """Write the page, with `follow` until the runs have ended; return the exit status."""
        trouble = ""
        while True:
            try:
                self._last = self._read()
            except RequestError as error:
                if not self._last:
                    raise
                if str(error) != trouble:
                    print(f"not read: {error}; trying on", file=sys.stderr)
                self._readers, trouble = self._opened(), str(error)
            over = not follow or all(read.brief.ended for read in self._last)
            first = self._write(0 if over else _EVERY_S)
            if first and opens and _has_browser():
                webbrowser.open(self._out.resolve().as_uri())
            if over:
                for read in self._last if follow else ():
                    print(f"{read.brief.run}: {read.brief.state}; next: {_checkpoints(read)}")
                return 0
            sleep(_EVERY_S)

    def _read(self) -> list[History]:
        """Read the runs. Raises CommandError for one that isn't there."""
        result = []
        for name, reader in zip(self._names, self._readers, strict=True):
            try:
                result.append(reader.read(time()))
            except RunError:
                if not self._last:
                    raise self._stored.unknown(name) from None
                self._write(0, f"{name} was deleted; this is what was read of it before.")
                deleted = f"{name} was deleted while its page was open; {self._out} shows it as it was"
                fix = f"tpu runs {self._settings.environment} lists the runs that are there"
                raise CommandError(f"{deleted}\n    fix: {fix}") from None
        return result

    def _write(self, refresh_s: int, note: str = "") -> bool:
        """Replace the file; return True if it is new to this command. Raises CommandError."""
        clock = f"read at {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %Z}"
        shown = [self._shown(read) for read in self._last]
        part, first = self._out.with_name(f".{self._out.name}.part"), not self._written
        try:
            text = page(shown, self._settings.environment, clock, refresh_s, note)
            self._out.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            part.replace(self._out)
        except WorkloadError as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            fix = "--out FILE in a folder that you may write"
            raise CommandError(f"--out {self._out}: {error.strerror}\n    fix: {fix}") from None
        if first:
            print(f"{self._out} is written", flush=True)
        self._written = True
        return first

    def _shown(self, read: History) -> Shown:
        brief, price = read.brief, self._stored.price(read.brief)
        environment, node = self._settings.environment, brief.node
        links = {}
        commands = [f"tpu tensorboard {environment} {brief.run}"]
        if self._stored.is_node(brief):
            links["logs"] = logs_url(node, self._settings.project)
            commands.insert(0, f"tpu logs {environment} {node}{'' if brief.ended else ' --follow'}")
        else:
            on = ((QueueSettings, "job list"), (SlurmSettings, "slurm status"))
            commands += [f"tpu {word} {environment}" for layer, word in on if self._settings.get(layer)]
        if read.profiled:
            commands.append(f"xprof --logdir {read.url}/profile")
        if brief.ended:
            commands.append(_checkpoints(read))
        spent, predicted = (_dollars(price, amount(brief)) for amount in (price.so_far, price.predicted))
        return Shown(read, spent, predicted, price.paid, links, commands)


def _checkpoints(read: History) -> str:
    """Return the command that shows what a run leaves."""
    return f"workload checkpoints list {read.url}"


def _cells(brief: Brief, price: Price) -> tuple[str, ...]:
    return (
        brief.run, brief.state, f"{brief.step:,} of {brief.steps:,}", number(brief.loss), best(brief),
        number(brief.tokens_per_s), share(brief.goodput), _dollars(price, price.so_far(brief)),
        brief.updated.partition(".")[0].replace("T", " "),
    )  # fmt: skip


def _dollars(price: Price, amount: float | None) -> str:
    """Format US dollars, `≤` where they may be less."""
    return "unknown" if amount is None else f"{'≤ ' if price.at_most else ''}${dollars(amount)}"


def _settings(environment: str, root: Path) -> Settings:
    return options.with_layer("storage", StorageSettings, from_file(environment, root))


def _stored(settings: Settings) -> Runs:
    return Runs(settings, Client(settings.project))


def _has_browser() -> bool:
    """Return True at a terminal with a desktop."""
    desktop = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.stdout.isatty() and bool(desktop)
