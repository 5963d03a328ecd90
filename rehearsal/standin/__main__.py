"""Command line of the stand-in.

Example: python -m rehearsal.standin install --pulumi-home ~/.pulumi
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rehearsal.plugin.errors import StandInError
from rehearsal.standin.install import install


def main(arguments: list[str] | None = None) -> int:
    """Install the plugin, or serve as it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m rehearsal.standin",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    installer = commands.add_parser("install", help="put the plugin into a Pulumi home")
    installer.add_argument("--pulumi-home", type=Path, required=True, help="for example ~/.pulumi")
    commands.add_parser("serve", help="what the Pulumi CLI starts: print a port and serve gRPC on it")
    # The engine adds its own address, which the stand-in has no use for.
    parsed, _ = parser.parse_known_args(arguments)
    if parsed.command == "serve":
        from rehearsal.plugin.server import serve
        from rehearsal.standin.provider import Provider

        serve(Provider())
        return 0
    try:
        executable = install(parsed.pulumi_home.expanduser())
    except StandInError as error:
        print(f"error: {error}\n{error.fix}", file=sys.stderr)
        return 1
    print(f"installed {executable}\nnext: PULUMI_HOME={parsed.pulumi_home} pulumi preview")
    return 0


if __name__ == "__main__":
    sys.exit(main())
