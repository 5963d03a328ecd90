"""`tpu plan`, `up` and `down`: preview an update, ask once, apply it."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import click

from cli import options
from cli.command import Command
from infra.engine import plan as planning
from infra.engine import refusals
from infra.engine import updates as stacks
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.slices.settings import TpuSettings
from views.console import Terminal
from views.counts import counted

_WITHOUT_ASKING = ("--yes", "--skip-preview")
_KEPT = {"storage": "the buckets stay, with their objects"}
_FULL = click.option("--full", is_flag=True, help="Print all output of Pulumi's preview.")


@click.command(cls=Command, examples=["dev", "dev --format markdown > comment.md"])
@options.environment
@options.layers
@options.as_json
@options.layout
@_FULL
@click.option("--save", metavar="DIR", type=options.PATH,
              help="Write the layers' plans there, for `tpu infra up --plan`.")  # fmt: skip
@click.pass_obj
def plan(
    root: Path, environment: str, layers: Sequence[str], as_json: bool, layout: str, full: bool,
    save: Path | None,
) -> int:  # fmt: skip
    """Show the changes of each layer, and their price; change nothing."""
    planned = _planned(environment, layers, root, save)
    if as_json:
        print(json.dumps(planning.as_json(planned)))
    elif layout == "markdown":
        print(planning.markdown(planned))
    else:
        print(planning.text(planned, full))
    planned.refuse_failed()
    if not as_json and layout == "text":
        saved = f"tpu infra up {environment} {' '.join(layers)} --plan {save}"
        command = saved if save else f"tpu up {environment} {' '.join(layers)}"
        print("\nno changes" if planned.empty else f"\nnext: {' '.join(command.split())}")
    return 0


@click.command(cls=Command, examples=["dev", "dev --yes"])
@options.environment
@options.layers
@options.as_json
@options.yes
@_FULL
@click.pass_obj
def up(root: Path, environment: str, layers: Sequence[str], as_json: bool, yes: bool, full: bool) -> int:
    """Bring layers up in their order; publish a bundle before the slices if there is none.

    Shows the plan and its price, and asks once.
    """
    out = sys.stderr if as_json else sys.stdout
    planned = _planned(environment, layers, root)
    print(planning.text(planned, full), file=out)
    planned.refuse_failed()
    names = [change.layer for change in planned.layers]
    publishes = "tpu" in names and from_file(environment, root)[TpuSettings].bundle is None
    if publishes:
        print("\nNo bundle is published yet: it is built and uploaded once its bucket exists.", file=out)
    if planned.empty and not publishes:
        print("\nno changes", file=out)
    else:
        confirm(f"\nApply to {environment}?", yes)
        with redirect_stdout(out):
            for name in names:
                if name == "tpu" and publishes:
                    _publish(environment)
                print(f"\n== {name} ==", flush=True)
                stacks.up(environment, [name], root, _WITHOUT_ASKING, output=out.fileno())
        print("\nup; next:", "\n          ".join(stacks.following(environment, root, names)), file=out)
    if as_json:
        print(json.dumps({**planning.as_json(planned), "applied": not planned.empty or publishes}))
    return 0


@click.command(cls=Command, examples=["dev"])
@options.environment
@options.layers
@options.as_json
@options.yes
@click.pass_obj
def down(root: Path, environment: str, layers: Sequence[str], as_json: bool, yes: bool) -> int:
    """Destroy the slices, or the named layers in reverse order; checkpoints stay. Asks once."""
    out = sys.stderr if as_json else sys.stdout
    names = stacks.in_order(layers) or ["tpu"]
    from_file(environment, root)  # reports its problems before Pulumi runs
    stored_resources = refusals.refuse(environment, names, root)
    if "tpu" in names:
        from fleet.removal import require_no_fleets  # slow to import

        require_no_fleets(environment, stored_resources["tpu"], root)
    held = {name: _held(stored_resources[name]) for name in reversed(names)}
    for name, resources in held.items():
        for kind, resource in resources:
            print(f"  - {kind}  {resource}", file=out)
        stored = f"; {_KEPT[name]}" if name in _KEPT else ""
        print(f"{name}: {counted(len(resources), 'resource')}{stored}", file=out)
    if any(held.values()):
        confirm(f"\nTake them down in {environment}?", yes)
        with redirect_stdout(out):
            stacks.down(environment, names, root, _WITHOUT_ASKING, output=out.fileno())
    else:
        print("nothing is up", file=out)
    if as_json:
        counts = {name: len(resources) for name, resources in held.items()}
        print(json.dumps({"environment": environment, "down": counts}))
    return 0


def _planned(environment: str, layers: Sequence[str], root: Path, save: Path | None = None) -> planning.Plan:
    selected = stacks.in_order(layers)
    with _progress("planning: pulumi preview of each layer"):
        return planning.plan(environment, root, selected, save)


def _held(resources: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return type and name of a stack's resources at Google, the last one first."""
    return [
        (resource["type"], resource["urn"].rpartition("::")[2])
        for resource in reversed(resources)
        if resource.get("custom") and not resource["type"].startswith("pulumi:")
    ]


def _publish(environment: str) -> None:
    from cli.publish import progress  # slow to import
    from infra.publish.publishing import default_lock, publish_environment

    publish_environment(environment, progress(), default_lock())


@contextmanager
def _progress(activity: str) -> Iterator[None]:
    """Show a spinner on a terminal, one line anywhere else."""
    console = Terminal(stderr=True)
    if console.is_terminal:
        with console.status(f"{activity} …"):
            yield
    else:
        print(f"{activity} …", file=sys.stderr, flush=True)
        yield
