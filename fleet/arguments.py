"""The command line of `python -m fleet`."""

import argparse
from collections.abc import Callable, Mapping

Commands = Mapping[str, tuple[Callable[[argparse.Namespace], int], str]]
"""What each command does, which says so in its docstring, and an example."""


def parser(does_what: Commands) -> argparse.ArgumentParser:
    """All commands with their flags."""
    top = argparse.ArgumentParser(
        prog="python -m fleet",
        description="Keeps the slices of an environment working; Pulumi.ENV.yaml says which there are.",
        epilog="example: python -m fleet monitor dev",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (does, example) in does_what.items():
        about = (does.__doc__ or "").strip().rstrip(".")
        command = commands.add_parser(
            name, help=about[0].lower() + about[1:], description=about + ".",
            epilog=f"example: python -m fleet {name} {example}",
        )  # fmt: skip
        command.add_argument(
            "environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml"
        )
        command.add_argument(
            "--slice",
            action="append",
            default=[],
            metavar="NAME",
            help="only this item of tpu:slices (again for more)",
        )
        command.add_argument(
            "--zones", type=lambda text: text.split(","), default=[], metavar="ZONE,…", help="only these"
        )
        command.add_argument(
            "--workers-per-zone", type=_count, metavar="N", help="only the first N slices in each zone"
        )
        if name in ("create", "deploy"):
            _add_ad_hoc(command)
        if name == "delete":
            command.add_argument("--orphans", action="store_true", help="what no setting asks for, too")
        if name not in ("monitor", "deploy"):
            command.add_argument("--json", action="store_true", help="for programs")
        if name in ("create", "delete", "recreate-preempted", "take-over", "deploy"):
            command.add_argument("--yes", action="store_true", help="don't ask")
            command.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
        if name == "deploy":
            _add_deployment(command)
        if name == "exec":
            _add_execution(command)
        if name in ("monitor", "deploy"):
            command.add_argument("--watch", action="store_true", help="only look; bring nothing back")
            command.add_argument(
                "--monitor-interval",
                type=_seconds,
                default=60,
                metavar="S",
                help="seconds between looks (60)",
            )
            command.add_argument(
                "--port",
                type=_port,
                metavar="PORT",
                help="the same as a page on this machine; 0: any free one",
            )
        command.set_defaults(run=does)
    return top


def _add_ad_hoc(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tpu-type",
        metavar="TYPE",
        help="a fleet that is in no file, of v6e-8 for example; --zones and --workers-per-zone say more",
    )
    command.add_argument("--on-demand", action="store_true", help="with --tpu-type: not spot")
    command.add_argument("--run", dest="run_command", metavar="LINE", help="with --tpu-type: what hosts run")


def _add_deployment(command: argparse.ArgumentParser) -> None:
    command.add_argument("--source", nargs="+", metavar="PATH", help="samples: files, folders")
    command.add_argument("--max-samples", type=_count, metavar="N", help="of each stream, for a trial")
    command.add_argument("--skip-dataset", action="store_true", help="the streams are in the bucket already")
    command.add_argument("--create-tpus", action="store_true", help="create the slices that aren't there")
    command.add_argument("--skip-launch", action="store_true", help="prepare and publish only")
    command.add_argument("--monitor", action="store_true", help="watch over the fleet afterwards")
    command.add_argument(
        "--timeout-s", type=_seconds, default=3600, metavar="S", help="until all must work (3600)"
    )
    command.epilog = f"{command.epilog} (after --: more for `workload data streams`)"
    command.set_defaults(json=False)


def _add_execution(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--partial", action="store_true", help="leave out what isn't READY or can't be reached, and go on"
    )
    command.add_argument(
        "--timeout-s",
        type=_seconds,
        default=600,
        metavar="S",
        help="after which a host ends the command (600)",
    )
    command.add_argument(
        "--parallel", type=_count, default=32, metavar="N", help="connections at a time (32)"
    )
    command.add_argument(
        "--logs",
        default="fleet-logs",
        metavar="DIR",
        help="where a folder with each worker's log is made",
    )
    command.epilog = f"{command.epilog} (behind --: words as they are, or a single one as a line of shell)"


def _whole(least: int, most: int, example: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        # Python itself refuses to read thousands of digits.
        if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= most:
            rule = f"must be a whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r}: {rule}\n    fix: e.g. {example}")
        return int(text)

    return read


_count = _whole(1, 2**31, 8)
_seconds = _whole(1, 30 * 86_400, 60)
_port = _whole(0, 2**16 - 1, 8899)
