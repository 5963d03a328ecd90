"""`python -m infra.recover ENV`: bring back slices that Google took away, and touch nothing else.

`pulumi up` alone never does: a preempted node still exists, so nothing differs. A refresh asks
Google for each node's state. Only an explicit one counts: PREEMPTED and TERMINATED are
replaced, a node that Google says doesn't exist is created, every other state is left alone.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from infra.cli import Pulumi, run
from infra.errors import CommandError

SLICE = "tpu:tpu:TpuSlice"
NODE = "gcp:tpu/v2Vm:V2Vm"
TAKEN_AWAY = ("PREEMPTED", "TERMINATED")
LAYER = "tpu"


@dataclass(frozen=True)
class Finding:
    """One slice: what Google says of it, and what follows: "replace", "create" or "leave"."""

    name: str
    urn: str
    state: str
    action: str

    def __str__(self) -> str:
        why = {
            "replace": f"Google says {self.state}: delete and create it again",
            "create": "Google knows no such node: create it",
            "leave": f"Google says {self.state}: left alone",
        }
        return f"  {self.action:<8} {self.name}: {why[self.action]}"


def findings(resources: Iterable[dict[str, Any]]) -> list[Finding]:
    """What to do with each slice in a refreshed state."""
    live = [resource for resource in resources if not resource.get("delete")]
    nodes = {resource["urn"]: resource for resource in live if resource["type"] == NODE}
    found = []
    for resource in live:
        if resource["type"] != SLICE:
            continue
        head, _, name = resource["urn"].rpartition("::")
        urn = f"{head}${NODE}::{name}"
        if urn not in nodes:
            found.append(Finding(name, urn, "absent", "create"))
            continue
        state = str((nodes[urn].get("outputs") or {}).get("state") or "nothing of its state")
        found.append(Finding(name, urn, state, "replace" if state in TAKEN_AWAY else "leave"))
    return found


def recover(environment: str, *, yes: bool, as_json: bool) -> int:
    """Refresh, say what was found, and bring back what is gone. Raises CommandError on any failure."""
    pulumi = Pulumi(environment, output=sys.stderr.fileno() if as_json else None)
    if environment not in pulumi.stacks(LAYER):
        raise CommandError(f"there is no stack {environment} of {LAYER} yet: pulumi up -s {environment}")
    quiet = ("--yes", "--skip-preview", "--non-interactive")
    pulumi.show(LAYER, "refresh", "--stack", environment, *quiet)
    found = findings(pulumi.state(LAYER))
    wanted = [finding for finding in found if finding.action != "leave"]
    if not as_json:
        print("\n".join([f"{len(found)} slice(s) in {environment}:", *map(str, found)]), flush=True)
    if wanted and not yes:
        _confirm(len(wanted))
    if wanted:
        targets = [
            flag
            for finding in wanted
            for flag in ("--target-replace" if finding.action == "replace" else "--target", finding.urn)
        ]
        # One zone without capacity must not keep the slices of the others from coming back.
        pulumi.show(LAYER, "up", "--stack", environment, *quiet, "--continue-on-error", *targets)
    if as_json:
        print(json.dumps({"environment": environment, "slices": [asdict(finding) for finding in found]}))
    else:
        print("nothing to bring back" if not wanted else f"brought back {len(wanted)} slice(s)")
    return 0


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise CommandError(f"{count} slice(s) would be brought back; without a terminal to ask, add --yes")
    print(f"Bring back {count} slice(s)? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.recover",
        description="Bring back slices that were preempted or terminated, and touch nothing else.",
        epilog="example: python -m infra.recover dev --yes",
    )
    parser.add_argument("environment", metavar="ENV", help="dev, prod, …")
    parser.add_argument("--yes", action="store_true", help="don't ask")
    parser.add_argument(
        "--json", action="store_true", help="print what was found as JSON (Pulumi goes to stderr)"
    )
    parsed = parser.parse_args(arguments)
    return run(lambda: recover(parsed.environment, yes=parsed.yes, as_json=parsed.json))


if __name__ == "__main__":
    sys.exit(main())
