"""`tpu plan`, `up` and `down`: what an update would change, one question, and the update."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from rich.console import Console

from infra.engine import plan as planning
from infra.engine import registry
from infra.engine import updates as stacks
from infra.engine.pulumi import Pulumi, confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.settings.sources import ROOT
from infra.slices.settings import TpuSettings

_WITHOUT_ASKING = ("--yes", "--skip-preview")
_KEPT = {"storage": "the buckets stay, with all they hold"}


def plan(arguments: Sequence[str], root: Path = ROOT) -> int:
    """What each layer would change, and what it costs; nothing is created."""
    parser = _parser("plan", plan.__doc__, "tpu plan dev --format markdown > comment.md")
    parser.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="markdown: a comment for CI"
    )
    parser.add_argument("--full", action="store_true", help="all that Pulumi prints")
    parser.add_argument(
        "--save",
        metavar="DIR",
        type=Path,
        help="write the layers' plans there, for `tpu infra up --plan`",
    )
    options = parser.parse_args(arguments)
    found = _planned(options, root, options.save)
    if options.json:
        print(json.dumps(planning.as_json(found)))
    elif options.format == "markdown":
        print(planning.markdown(found))
    else:
        print(planning.text(found, options.full))
    found.refuse_failed()
    if not options.json and options.format == "text":
        saved = f"tpu infra up {options.environment} {' '.join(options.layers)} --plan {options.save}"
        command = " ".join(saved.split()) if options.save else f"tpu up {options.environment}"
        print("\nno changes" if found.empty else f"\nnext: {command}")
    return 0


def up(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Bring layers up in their order: their stacks, the bundle if there is none yet, and the slices.

    Shows the plan and its price, and asks once.
    """
    parser = _parser("up", up.__doc__, "tpu up dev --yes")
    parser.add_argument("--yes", action="store_true", help="don't ask; required without a terminal")
    parser.add_argument("--full", action="store_true", help="all that Pulumi prints in the plan")
    options = parser.parse_args(arguments)
    out = sys.stderr if options.json else sys.stdout
    found = _planned(options, root)
    print(planning.text(found, options.full), file=out)
    found.refuse_failed()
    names = [one.layer for one in found.layers]
    publishes = "tpu" in names and from_file(options.environment, root)[TpuSettings].bundle is None
    if publishes:
        print("\nNo bundle is published yet: it is built and uploaded once its bucket is there.", file=out)
    if found.empty and not publishes:
        print("\nno changes", file=out)
    else:
        confirm(f"\nApply to {options.environment}?", options.yes)
        with redirect_stdout(out):
            for name in names:
                if name == "tpu" and publishes:
                    _publish(options.environment)
                print(f"\n== {name} ==", flush=True)
                stacks.up(options.environment, [name], root, _WITHOUT_ASKING, output=out.fileno())
        print(f"\nup; next: tpu status {options.environment}", file=out)
    if options.json:
        print(json.dumps({**planning.as_json(found), "applied": not found.empty or publishes}))
    return 0


def down(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Take the slices down, or the layers named, the last one first; checkpoints stay. Asks once."""
    parser = _parser("down", down.__doc__, "tpu down dev")
    parser.add_argument("--yes", action="store_true", help="don't ask; required without a terminal")
    options = parser.parse_args(arguments)
    out = sys.stderr if options.json else sys.stdout
    environment = options.environment
    names = stacks.in_order(options.layers) or ["tpu"]
    from_file(environment, root)  # its problems, before Pulumi is asked
    pulumi = Pulumi(environment, root)
    pulumi.require_passphrase()
    held = {name: _held(pulumi, name) for name in reversed(names)}
    for name, resources in held.items():
        for kind, resource in resources:
            print(f"  - {kind}  {resource}", file=out)
        stored = f"; {_KEPT[name]}" if name in _KEPT else ""
        print(f"{name}: {len(resources)} resources{stored}", file=out)
    if any(held.values()):
        confirm(f"\nTake them down in {environment}?", options.yes)
        with redirect_stdout(out):
            stacks.down(environment, names, root, _WITHOUT_ASKING, output=out.fileno())
    else:
        print("nothing is up", file=out)
    if options.json:
        print(
            json.dumps({"environment": environment, "down": {name: len(one) for name, one in held.items()}})
        )
    return 0


def _parser(name: str, about: str | None, example: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"tpu {name}", description=about, epilog=f"example: {example}")
    parser.add_argument("environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml")
    every = ", ".join(layer.name for layer in registry.layers())
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"of {every}")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def _planned(options: argparse.Namespace, root: Path, save: Path | None = None) -> planning.Plan:
    only = stacks.in_order(options.layers)
    with _progress("planning: pulumi preview of each layer"):
        return planning.plan(options.environment, root, only, save)


def _held(pulumi: Pulumi, layer: str) -> list[tuple[str, str]]:
    """Kind and name of what a layer's stack holds at Google, the last one first."""
    exported = pulumi.export(layer)
    resources = (exported or {}).get("deployment", {}).get("resources") or []
    real = [one for one in resources if one.get("custom") and not one["type"].startswith("pulumi:")]
    return [(one["type"], one["urn"].rpartition("::")[2]) for one in reversed(real)]


def _publish(environment: str) -> None:
    from infra.publish.__main__ import main as publish

    if code := publish([environment]):
        raise CommandError(f"the bundle wasn't published (status {code}); the slices aren't up")


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """A spinner on a terminal; one line anywhere else."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(f"{what} …"):
            yield
    else:
        print(f"{what} …", file=sys.stderr, flush=True)
        yield
