"""Command line of the stand-ins.

Example: python -m rehearsal.providers.gcp install --pulumi-home ~/.pulumi
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rehearsal.providers.gcp.install import PACKAGES, install
from rehearsal.providers.plugin.errors import StandInError


def main(arguments: list[str] | None = None) -> int:
    """Install the plugins, or serve as one; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m rehearsal.providers.gcp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    installer = commands.add_parser("install", help="put the plugins into a Pulumi home")
    installer.add_argument("--pulumi-home", type=Path, required=True, help="for example ~/.pulumi")
    installer.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"{', '.join(PACKAGES)}; all")
    server = commands.add_parser(
        "serve", help="what the Pulumi CLI starts: print a port and serve gRPC on it"
    )
    server.add_argument("package", choices=PACKAGES)
    # The engine adds its own address, which the stand-in has no use for.
    parsed, _ = parser.parse_known_args(arguments)
    if parsed.command == "serve":
        from rehearsal.providers.plugin.server import serve

        serve(PACKAGES[parsed.package].load())
        return 0
    if unknown := set(parsed.packages) - set(PACKAGES):
        parser.error(f"no stand-in for {', '.join(sorted(unknown))}; there are {', '.join(PACKAGES)}")
    try:
        installed = install(parsed.pulumi_home.expanduser(), parsed.packages or PACKAGES)
    except StandInError as error:
        print(f"error: {error}\n{error.fix}", file=sys.stderr)
        return 1
    print(*(f"installed {place}" for place in installed), sep="\n")
    print(f"next: PULUMI_HOME={parsed.pulumi_home} pulumi preview")
    return 0


if __name__ == "__main__":
    sys.exit(main())
