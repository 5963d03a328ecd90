"""The command line of `tpu fleet`."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

Commands = Mapping[str, tuple[Callable[[argparse.Namespace], int], str]]
"""What each command does, which says so in its docstring, and an example."""


def parser(does_what: Commands, prog: str = "tpu fleet") -> argparse.ArgumentParser:
    """All commands with their flags; `prog`: what the usage calls them."""
    top = argparse.ArgumentParser(
        prog=prog,
        description="Keeps the slices of an environment working; Pulumi.ENV.yaml says which there are.",
        epilog="example: tpu fleet monitor dev",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (does, example) in does_what.items():
        about = (does.__doc__ or "").strip().rstrip(".")
        epilog = f"example: {prog} {name} {example}{_MORE.get(name, '')}"
        command = commands.add_parser(
            name, help=about[0].lower() + about[1:], description=f"{about}.", epilog=epilog
        )
        command.add_argument(
            "environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml"
        )
        if name in _OF_A_NODE:
            command.add_argument("node", metavar="NODE", nargs="?", help="a node, or a slice with one node")
        for flag, of, about, more in _FLAGS:
            if not of or name in of.split():
                command.add_argument(flag, help=about, **(more or {"action": "store_true"}))
        command.set_defaults(run=does, json=False)
    return top


def _whole(metavar: str, least: int, most: int, example: int, default: int | None = None) -> dict[str, Any]:
    def read(text: str) -> int:
        # Python itself refuses to read thousands of digits.
        if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= most:
            rule = f"must be a whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r}: {rule}\n    fix: e.g. {example}")
        return int(text)

    return {"type": read, "metavar": metavar, "default": default}


def _count(default: int | None = None) -> dict[str, Any]:
    return _whole("N", 1, 2**31, 8, default)


def _seconds(default: int) -> dict[str, Any]:
    return _whole("S", 1, 30 * 86_400, 60, default)


_ZONES = {"type": lambda text: text.split(","), "default": [], "metavar": "ZONE,…"}
_MORE = {
    "deploy": " (after --: more for `workload data streams`)",
    "exec": " (behind --: words as they are, or a single one as a line of shell)",
}
_CHANGE = "create delete recover take-over deploy"
_REMOTE = "exec restart"
_OF_A_NODE = ("ssh",)
# Flag, the commands that have it (none: all), its help, and what argparse is told (nothing: a switch).
_FLAGS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("--slice", "", "only this item of tpu:slices (again for more)",
     {"action": "append", "default": [], "metavar": "NAME"}),
    ("--zones", "", "only these", _ZONES),
    ("--workers-per-zone", "", "only the first N slices in each zone; a fleet's worker is a slice", _count()),
    ("--tpu-type", "create deploy",
     "a fleet that is in no file, of v6e-8 for example; --zones and --workers-per-zone say more",
     {"metavar": "TYPE"}),
    ("--on-demand", "create deploy", "with --tpu-type: not spot", {}),
    ("--run", "create deploy", "with --tpu-type: what hosts run", {"dest": "run_command", "metavar": "LINE"}),
    ("--orphans", "delete", "what no setting asks for, too", {}),
    ("--json", "create delete status list recover take-over exec restart doctor", "for programs", {}),
    ("--yes", f"{_CHANGE} restart", "don't ask", {}),
    ("--dry-run", _CHANGE, "say what would be done, and stop", {}),
    ("--source", "deploy", "samples: files, folders", {"nargs": "+", "metavar": "PATH"}),
    ("--max-samples", "deploy", "of each stream, for a trial", _count()),
    ("--skip-dataset", "deploy", "the streams are in the bucket already", {}),
    ("--create-tpus", "deploy", "create the slices that aren't there", {}),
    ("--skip-launch", "deploy", "prepare and publish only", {}),
    ("--monitor", "deploy", "watch over the fleet afterwards", {}),
    ("--timeout-s", "deploy", "until all must work (3600)", _seconds(3600)),
    ("--partial", _REMOTE, "leave out what isn't READY or can't be reached, and continue", {}),
    ("--timeout-s", _REMOTE, "after which a host ends the command (600)", _seconds(600)),
    ("--parallel", _REMOTE, "connections at a time (32)", _count(32)),
    ("--logs", _REMOTE, "where a folder with each worker's log is made",
     {"default": "fleet-logs", "metavar": "DIR"}),
    ("--worker", "ssh", "which host (0)", {"type": int, "default": 0, "metavar": "N"}),
    ("--watch", "monitor deploy", "only look; bring nothing back", {}),
    ("--monitor-interval", "monitor deploy", "seconds between looks (60)", _seconds(60)),
    ("--port", "monitor deploy", "serve a web dashboard on this port of localhost; 0: any free one",
     _whole("PORT", 0, 2**16 - 1, 8899)),
)  # fmt: skip
