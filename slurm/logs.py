"""Lines of a machine in Cloud Logging, sent from the journal as TPU hosts send theirs."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from slurm.errors import SlurmError
from workload.host import logs, unit
from workload.host.errors import HostError

KEEPER = "slurm-keep.service"
UNITS = ("google-startup-scripts.service", KEEPER, "slurmctld.service", "munge.service")


def run() -> None:
    """Send lines until SIGTERM or SIGINT.

    Raises:
        SlurmError: the machine isn't described, or the journal ended.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        logs.run(Path(unit.CURSOR), stopping, logs.Shipper(logs.destination(), stopping), UNITS)
    except HostError as error:
        raise SlurmError(str(error)) from None
