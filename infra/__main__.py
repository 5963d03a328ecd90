"""The commands of `tpu infra`."""

import argparse
import sys
from pathlib import Path

from infra.doctor import grants
from infra.engine import refusals, registry, updates
from infra.engine.prices import show
from infra.engine.pulumi import run
from infra.settings.sources import ROOT


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command on the project at `root`; return the exit status."""
    return run(lambda: _run(arguments, root))


def _run(arguments: list[str] | None, root: Path) -> int:
    every = ", ".join(layer.name for layer in registry.layers())
    parser = argparse.ArgumentParser(
        prog="tpu infra",
        description="Price, bring up, take down and recover the layers of an environment.",
        epilog="example: tpu infra prices dev",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=text, description=text)
        subparser.add_argument(
            "environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml"
        )
        return subparser

    command("prices", "print the layers' prices").add_argument(
        "--json", action="store_true", help="for programs"
    )
    command("roles", "print the commands that grant each account its roles").add_argument(
        "--json", action="store_true", help="for programs"
    )
    settling = command("settle", "recover from a killed pulumi: clear its lock, import what it made")
    changing = [
        command("up", "settle each layer and run pulumi up, in their order"),
        command("down", "settle each layer and run pulumi destroy, in reverse order"),
    ]
    for subparser, number in ((settling, "*"), (changing[0], "*"), (changing[1], "+")):
        default = "without any, all that are on in ENV" if number == "*" else "at least one"
        subparser.add_argument("layers", nargs=number, metavar="LAYER", help=f"of {every}; {default}")
    for subparser in changing:
        subparser.add_argument("--yes", action="store_true", help="don't ask; required without a terminal")
        subparser.add_argument("--skip-preview", action="store_true", help="don't show the plan first")
    changing[0].add_argument(
        "--plan", metavar="DIR", type=Path, help="apply no more than the plans in DIR, of `tpu plan --save`"
    )
    changing[1].add_argument("--check", action="store_true", help="destroy nothing; list what prevents it")
    changing[0].add_argument("--after", metavar="LAYER", help="only the layers after this one")
    parsed = parser.parse_args(arguments)
    environment = parsed.environment
    options = [
        f"--{option}"
        for option in ("yes", "skip-preview")
        if getattr(parsed, option.replace("-", "_"), False)
    ]
    match parsed.command:
        case "prices":
            return show(environment, root, as_json=parsed.json)
        case "roles":
            return grants.show(environment, root, as_json=parsed.json)
        case "settle":
            return updates.settle_layers(environment, parsed.layers, root)
        case "up":
            return updates.up(environment, parsed.layers, root, options, parsed.after, plans=parsed.plan)
        case "down" if parsed.check:
            refusals.refuse(environment, updates.in_order(parsed.layers), root)
            print(f"nothing prevents taking {', '.join(parsed.layers)} down")
            return 0
        case _:
            return updates.down(environment, parsed.layers, root, options)


if __name__ == "__main__":
    sys.exit(main())
