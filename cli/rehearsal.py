"""`tpu rehearsal`: an emulated Google Cloud on this machine."""

from pathlib import Path
from typing import Any

import click

from cli import options
from cli.command import Group
from cli.options import PATH, Positive, combined
from rehearsal import commands
from rehearsal.commands import World, guarded
from rehearsal.world import person

_EPILOG = """\b
Examples:
  tpu rehearsal run                     the default scenario: four stacks, four hosts, two preemptions
  tpu rehearsal run kills --seed 7      another scenario, with an earlier run's seed
  tpu rehearsal run my.py --keep        your own; the world stays up afterwards
  tpu rehearsal shell                   a shell in the world that is up, or in a fresh one
  tpu rehearsal shell -c 'pulumi preview -s dev'
  tpu rehearsal up; tpu rehearsal status; tpu rehearsal down

\b
Exit status:
  0 passed   1 the scenario failed   2 wrong command line or scenario   3 no world   130 interrupted

docs/concepts/rehearsal.md lists what is real and what is emulated, docs/internals/scenarios.md the steps
of a scenario.
"""
_POSITIVE = Positive("is not a positive number")
_DIR = click.option(
    "--dir", "folder", type=PATH, help="The world's folder; default: one in the cache folder."
)
_PLUGINS = click.option(
    "--plugins", type=PATH, metavar="DIR", help="Folder with the official gcp provider plugin."
)
_FRESH = combined(
    _DIR, _PLUGINS,
    click.option("--env", "environment", default="dev", show_default=True,
                 help="Environment of a fresh world."),
    click.option("--clock", type=_POSITIVE, default=20.0, show_default=True,
                 help="Its virtual seconds per second."),
)  # fmt: skip


@click.group(cls=Group, epilog=_EPILOG)
def rehearsal() -> None:
    """Run an emulated Google Cloud on this machine, with hosts that boot. Needs root."""


@rehearsal.command(examples=["kills --seed 7"])
@click.argument("scenario", metavar="[SCENARIO]", default="default", help="a name of `list` or a file")
@click.option(
    "--report", type=PATH, default="rehearsal-report", show_default=True, help="Folder for the report."
)
@click.option("--seed", type=int, help="Draw the random moments from this number.")
@click.option("--keep", is_flag=True, help="Leave the world up afterwards.")
@_DIR
@_PLUGINS
def run(
    scenario: str, report: Path, seed: int | None, keep: bool, folder: Path | None, plugins: Path | None
) -> int:
    """Run a scenario and write a report."""
    world = World(folder, plugins)
    return guarded(lambda narrator: commands.run(narrator, scenario, world, seed, report, keep))


@rehearsal.command(examples=[""])
@_FRESH
def up(**world: Any) -> int:
    """Create a world and leave it up."""
    return guarded(lambda narrator: commands.up(narrator, World(**world)))


@rehearsal.command(examples=["-c 'pulumi preview -s dev'"])
@click.option("-c", "line", metavar="CMD", help="Run this instead of an interactive shell.")
@click.option("--as", "account", type=click.Choice(person.LOGINS), default="platform-engineer",
              show_default=True, help="The user in the world.")  # fmt: skip
@_FRESH
def shell(line: str | None, account: str, **world: Any) -> int:
    """Start a shell in the world that is up, or in a fresh one."""
    return guarded(lambda narrator: commands.shell(narrator, World(**world), account, line))


@rehearsal.command(examples=[""])
@_DIR
def down(folder: Path | None) -> int:
    """End the world that is up and remove its folder."""
    return guarded(lambda narrator: commands.down(narrator, folder))


@rehearsal.command(examples=["--json"])
@_DIR
@options.as_json
def status(folder: Path | None, as_json: bool) -> int:
    """Show nodes, hosts, requests and faults of the world that is up."""
    return guarded(lambda narrator: commands.status(narrator, folder, as_json=as_json))


@rehearsal.command("list", examples=[""])
@options.as_json
def list_scenarios(as_json: bool) -> int:
    """List the scenarios of the project."""
    return guarded(lambda narrator: commands.list_scenarios(narrator, as_json=as_json))


@rehearsal.command(examples=["rehearsal-report/record.json"])
@click.argument("source", type=PATH, help="record.json of a report, or a .cast of its logs")
@click.option("--out", type=PATH, help="Default: docs/pictures/loss.svg, of a recording recovery.svg.")
def picture(source: Path, out: Path | None) -> int:
    """Draw the losses of a report, or a recording, as SVG."""
    return guarded(lambda narrator: commands.picture(narrator, source, out))
