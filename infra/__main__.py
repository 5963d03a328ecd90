"""`python -m infra preview ENV` and `python -m infra prices ENV`."""

import argparse
import sys

from infra.cli import run
from infra.preview import preview
from infra.prices import show


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m infra",
        description="The plan and the price of all four layers, before anything exists.",
        epilog="example: python -m infra preview dev",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser("preview", help="check the settings, show prices, and preview every layer")
    plan.add_argument("environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml")
    costs = commands.add_parser("prices", help="what the slices cost")
    costs.add_argument("environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml")
    costs.add_argument("--json", action="store_true", help="for programs")
    parsed = parser.parse_args(arguments)
    if parsed.command == "prices":
        return run(lambda: show(parsed.environment, as_json=parsed.json))
    return run(lambda: preview(parsed.environment))


if __name__ == "__main__":
    sys.exit(main())
