"""Monitor a fleet: observe, recover lost members, show a dashboard, until Ctrl+C."""

import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass

from fleet.controller import Controller, busy_s
from fleet.dashboard import Dashboard, serve
from fleet.environment import Environment, opened
from fleet.errors import FleetError
from fleet.recovery import release
from fleet.request import FleetCommand
from fleet.store import RENEW_S, UnreachableError
from fleet.supervise import take_down_ended
from infra.engine.prices import within_budget
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
    """Observe and recover until Ctrl+C, which leaves the fleet as it is."""
    fleet = opened(request, allow_empty=True)
    if not options.watch:
        within_budget(fleet.settings)
    controller = fleet.controller(lead=not options.watch)
    with Dashboard(f"fleet {request.environment}", project=fleet.settings.project) as dashboard:
        page = serve(dashboard, options.port) if options.port is not None else None
        try:
            while True:
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
    """Return the fleet by the present settings file; the earlier one if the file is wrong."""
    try:
        new = opened(request, fleet, allow_empty=True)
        if new.settings == fleet.settings:
            if new.adhoc != fleet.adhoc:  # in their phases alone
                new.follow(controller)
                return new
            return fleet
        if not options.watch:
            within_budget(new.settings)
        for name, section in (("gcp", GcpSettings), ("storage", StorageSettings), ("fleet", FleetSettings)):
            if new.settings[section] != fleet.settings[section]:
                raise FleetError(f"{name}: has changed; to apply it: Ctrl+C, and monitor again")
    except InfraError as error:
        controller.note(f"the new settings are ignored: {error}", logging.WARNING)
        return fleet
    before, after = ({member.key for member in version.members} for version in (fleet, new))
    changes = [f"{key} is new" for key in sorted(after - before)]
    changes += [f"{key} is removed" for key in sorted(before - after)]
    new.follow(controller)
    if changes:
        controller.note(f"the settings changed: {', '.join(changes)}")
    return new
