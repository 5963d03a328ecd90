"""Monitor a fleet: observe, recover lost members, show a dashboard, until Ctrl+C."""

import logging
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fleet.adhoc import PHASE, WHY, Item, Phase, twice_called, wanted
from fleet.controller import Controller, busy_s
from fleet.dashboard import Dashboard, serve
from fleet.ending import take_down_ended
from fleet.environment import Environment, opened, over_budget
from fleet.errors import FleetError
from fleet.recovery import release
from fleet.request import FleetCommand
from fleet.store import RENEW_S, UnreachableError
from infra.errors import InfraError
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import FleetSettings, GcpSettings


@dataclass(frozen=True)
class Monitoring:
    """Options of a monitor.

    Attributes:
        watch: observe only.
        interval_s: pause between two observations while nothing is under way.
        port: of the web dashboard on localhost, 0: any free one; None: no dashboard.
    """

    watch: bool = False
    interval_s: int = 60
    port: int | None = None


def monitor(request: FleetCommand, options: Monitoring) -> int:
    """Observe and recover until Ctrl+C, which leaves the fleet as it is, or until its ad hoc fleets end.

    Above the budget nothing is created, and the rest goes on.
    """
    fleet = opened(request, allow_empty=True)
    controller = fleet.controller(lead=not options.watch)
    project, environment = fleet.settings.project, request.environment
    with Dashboard(f"fleet {environment}", project=project, environment=environment) as dashboard:
        page = serve(dashboard, options.port) if options.port is not None else None
        try:
            while True:
                if ended := _ended(request, fleet):
                    request = replace(request, slices=tuple(sorted({*request.slices} - {*ended})))
                    if not request.slices:
                        break
                fleet = _reloaded(request, options, fleet, controller)
                observation = controller.step()
                dashboard.show(observation)
                if not options.watch:
                    take_down_ended(fleet, controller, observation)
                pause_s = busy_s(len(fleet.members)) if controller.busy else math.inf
                rest(controller, min(options.interval_s, pause_s))
        finally:
            if page:
                page.shutdown()
            release(controller)
    output = f"output: {_logs(request, [*ended])}"
    print(f"{'; '.join(ended.values())}: nothing is left to monitor; {output}", file=sys.stderr)
    return 0


def _logs(request: FleetCommand, names: Sequence[str]) -> str:
    """Return the command that prints the output of an ended fleet, or of all."""
    return " ".join(["tpu logs", request.environment, *(names if len(names) == 1 else ())])


def _ended(request: FleetCommand, fleet: Environment) -> dict[str, str]:
    """Return the requested ad hoc fleets that have ended or whose record is gone, with a sentence each."""
    result = {}
    for name in [name for name in request.slices if name in fleet.adhoc]:
        try:
            record = fleet.saved.record(name)
        except FleetError:
            continue  # its phase isn't known
        if record is None:
            result[name] = f"{name}: its record is gone"
        elif record[PHASE] is Phase.ENDED:
            result[name] = f"{name} has ended ({record.get(WHY) or 'without a reason'})"
    return result


def rest(controller: Controller, seconds: float) -> None:
    """Sleep, and renew the lease meanwhile."""
    while seconds > 0:
        nap_s = min(seconds, RENEW_S / 2)
        time.sleep(nap_s)
        with suppress(UnreachableError):  # tried again after the next nap
            controller.renew()
        seconds -= nap_s


def _reloaded(
    request: FleetCommand, options: Monitoring, fleet: Environment, controller: Controller
) -> Environment:
    """Return the fleet by the present settings file; by the earlier one if the file is wrong."""
    try:
        new = opened(request, fleet, allow_empty=True)
        for name, section in (("gcp", GcpSettings), ("storage", StorageSettings), ("fleet", FleetSettings)):
            if _lasting(new, section) != _lasting(fleet, section):
                raise FleetError(f"{name}: has changed; to apply it: Ctrl+C, and monitor again")
    except InfraError as error:
        controller.note(f"the new settings are ignored: {error}", logging.WARNING, "settings")
        new = _with_present_phases(fleet)
    else:
        controller.note("", topic="settings")
    remarks = {**new.unread, **{name: twice_called(request.environment, name) for name in new.twice}}
    for name, remark in remarks.items():
        controller.note(remark, logging.WARNING, f"record {name}")
    if not options.watch:
        controller.note(over_budget(new.settings), logging.WARNING, "refused")
    shown = {member.slice for member in fleet.members}
    over = sorted(shown & fleet.adhoc.keys() - new.adhoc.keys() - new.unread.keys())
    for name in over:
        why = new.saved.over.get(name, "its record is gone")
        controller.note(f"{name} has ended ({why}); output: {_logs(request, [name])}")
    if over and not new.members:
        controller.note("nothing is left to monitor: Ctrl+C")
    before, after = (
        {member.key for member in version.members if member.slice not in over} for version in (fleet, new)
    )
    changes = [f"{key} is new" for key in sorted(after - before)]
    changes += [f"{key} is removed" for key in sorted(before - after)]
    new.follow(controller)
    if changes:
        controller.note(f"the settings changed: {', '.join(changes)}")
    return new


def _lasting(fleet: Environment, section: type[Any]) -> Any:
    """Return a section without the limit that a running monitor follows."""
    settings = fleet.settings[section]
    return replace(settings, dollars_per_hour=None) if section is FleetSettings else settings


def _with_present_phases(fleet: Environment) -> Environment:
    """Return a fleet with the present phases of its ad hoc fleets: ended ones are taken down all the same.

    Those whose record is another one by now are left out, until the settings can be read again.
    """
    try:
        present = fleet.saved.read()
    except FleetError:
        return fleet
    adhoc: dict[str, Item] = {
        name: present[name]
        for name, item in fleet.adhoc.items()
        if name in present and wanted(present[name]) == wanted(item)
    }
    gone = fleet.adhoc.keys() - adhoc
    members = tuple(member for member in fleet.members if member.slice not in gone)
    return replace(fleet, adhoc=adhoc, members=members)
