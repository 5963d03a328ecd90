"""Commands that observe: the status of every member, a list of nodes, the doctor, a unit for systemd."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict

from fleet import doctor as fleet_checks
from fleet import show
from fleet.adhoc import NOTHING, Item, owner
from fleet.environment import Environment, google_of, opened, over_budget, selected
from fleet.errors import FleetError
from fleet.model import Condition, ObservedNode
from fleet.observation import Observation
from fleet.request import FleetCommand
from fleet.show import Rates
from fleet.store import BucketStore
from fleet.unit import unit
from infra.doctor.checks import Target, checks
from infra.doctor.report import format_report, healthy, run_checks, with_names
from infra.engine.named import read_stack
from infra.engine.settings import from_file
from infra.layers.storage.names import controller_account_email
from infra.layers.storage.settings import StorageSettings
from infra.slices.nodes import Node
from views.console import Terminal
from views.terminal import unguarded


def status(request: FleetCommand) -> int:
    """Print every member, its state at Google and on its workers, and the next action."""
    with progress():
        fleet = opened(request, allow_empty=True)
        observation = fleet.controller().step()
    if dear := over_budget(fleet.settings):
        print(dear, file=sys.stderr)
    unattended = [] if request.as_json else _unattended(fleet, observation)
    return print_status(observation, request.as_json, _shown(fleet), unattended)


def _unattended(fleet: Environment, observation: Observation) -> list[str]:
    """Return what recovers lost members, if no controller does."""
    lost = [item.node for item in observation.decisions if item.condition is Condition.RECOVERING]
    try:
        if not lost or BucketStore(fleet.google, fleet.stack.id).leader()[1]:
            return []
    except FleetError:  # which acts, isn't known
        return []
    name, them = fleet.settings.environment, "it" if len(lost) == 1 else "them"
    again = f"tpu fleet monitor {name} also recovers later losses"
    return [f"{', '.join(lost)}: no controller recovers {them}; next: tpu recover {name}; {again}"]


def _shown(fleet: Environment) -> dict[str, Item]:
    """Return the ad hoc fleets of the selected members."""
    names = {member.slice for member in fleet.members}
    return {name: item for name, item in fleet.adhoc.items() if name in names}


def list_nodes(request: FleetCommand) -> int:
    """Print every node of the environment in any zone, with orphans unless slices are selected."""
    with progress():
        fleet = opened(request, allow_empty=True)
        observation = fleet.controller().step()
    owners = {name: owner(item) for name, item in fleet.adhoc.items()}
    members = {(member.zone, member.name): member for member in observation.members}
    matches = [node for key in members if (node := observation.view.node(key[1], key[0]))]
    if not request.slices:
        matches += [
            orphan for orphan in observation.orphans if not request.zones or orphan.zone in request.zones
        ]
    if request.as_json:
        print(json.dumps([_as_json(node, members.get((node.zone, node.name)), owners) for node in matches]))
    else:
        text = show.plain(show.listed(matches, members, owners)) if matches else "no nodes"
        print(text, file=unguarded(sys.stdout))
    return report_unanswered(observation)


def _as_json(node: ObservedNode, member: Node | None, owners: Mapping[str, str]) -> dict[str, str | None]:
    slice_name = member.slice if member else None  # an orphan has none
    return {
        "name": node.name, "zone": node.zone, "id": node.instance, "state": node.state, "slice": slice_name,
        "owner": owners.get(slice_name or ""),
    }  # fmt: skip


def doctor(request: FleetCommand) -> int:
    """Report what keeps the fleet from working: login, APIs, roles, quotas, zones, stacks, bundle."""
    settings = from_file(request.environment)
    target = selected(settings, request)
    if sys.stderr.isatty():
        print("checking Google and Pulumi …", file=sys.stderr)
    google = google_of(settings)
    every = [*checks(Target(settings, target, google)), *fleet_checks.checks(settings, google)]
    findings = with_names(run_checks(every), settings, google)
    if request.as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        print(format_report(findings), file=unguarded(sys.stdout))
    return 0 if healthy(findings) else 1


def print_unit(environment: str) -> int:
    """Print a systemd unit that runs a controller on a machine with a checkout."""
    settings = from_file(environment)
    account = controller_account_email(settings) if settings[StorageSettings].controller_account_id else ""
    print(unit(environment, read_stack(environment).id, account), end="")
    return 0


def progress() -> AbstractContextManager[object]:
    """Return a spinner for the seconds that Pulumi and Google take, on a terminal only."""
    console = Terminal(stderr=True)
    return console.status("reading from Pulumi and Google …") if console.is_terminal else nullcontext()


def print_status(
    observation: Observation,
    as_json: bool,
    adhoc: Mapping[str, Item] = NOTHING,
    further: Sequence[str] = (),
) -> int:
    """Print the members' rows, the ad hoc fleets, remarks and further lines; return the exit status."""
    rows = show.rows(observation, Rates())
    if as_json:
        print(json.dumps(show.as_json(observation, rows, adhoc)))
    else:
        lines = [show.summary(rows), *show.of_adhoc(adhoc), *show.remarks(observation), *further]
        nodes = f"{show.price_so_far(show.Spent(observation))}, of the nodes that exist"
        lines.append(f"{nodes} (of a run's starts: tpu runs)")
        print(show.plain(show.table(rows)), file=unguarded(sys.stdout))
        print("\n".join(lines))
    return report_unanswered(observation)


def report_unanswered(observation: Observation) -> int:
    """Print the zones and buckets that didn't answer; return 1 if there are any, else 0."""
    lines = show.unanswered(observation)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0
