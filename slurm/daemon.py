"""The daemon of a machine: slices and files on the controller; on any, a watch for another program."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.environment import google_of
from infra.errors import InfraError
from infra.layers.slurm import names
from infra.slices.names import STACK_ID_VARIABLE
from slurm import boot, configure
from slurm.cluster import Cluster
from slurm.decide import Slice
from slurm.disk import Exports
from slurm.keep import Keeper, Scontrol, declared, keep
from slurm.machine import Metadata
from slurm.recovered import Recovered
from slurm.system import System
from slurm.watch import Watch

_WATCH_S = 300.0
_LOG = logging.getLogger(__name__)


def run(role: str, metadata: Metadata, system: System) -> None:
    """Run the daemon of a role until the metadata names another program; then boot again, with that one.

    Raises:
        InfraError: the settings or the metadata can't be read.
    """
    program = metadata.value(names.PROGRAM_KEY)
    changed = threading.Event()
    threading.Thread(target=_watch, args=(metadata, program, changed), daemon=True).start()
    if role == names.CONTROLLER:
        settings, reached, slurm = boot.known(metadata), boot.reached(metadata), Scontrol()
        keeper = Keeper(settings, google_of(settings), os.environ[STACK_ID_VARIABLE], reached, slurm)
        files = Files(configure.files(settings, reached, role), declared(settings, reached), system)
        beside = files.apply, Exports(system, settings).apply, Recovered().requeue
        watch = Watch(settings).look
        keep(keeper, slurm, Path(names.REQUESTS), changed.is_set, time.sleep, beside, watch)
    else:
        changed.wait()
    _LOG.info("another program: the start-up script fetches it")
    system.run(["systemctl", "restart", "--no-block", "google-startup-scripts.service"])


def _watch(metadata: Metadata, program: str, changed: threading.Event) -> None:
    while not metadata.wait(names.PROGRAM_KEY, program, _WATCH_S):
        pass
    changed.set()


class Files:
    """Slurm's files on the controller, which change with the program, and only once no job would be lost."""

    def __init__(self, wanted: Mapping[str, str], slices: Sequence[Slice], system: System):
        self._wanted, self._slices, self._system = wanted, slices, system
        self._applied = self._written = False
        self._reported: Sequence[str] = ()

    def apply(self, known: Cluster) -> None:
        """Write what differs, and let slurmctld read it, unless a host that the new files lack is in use.

        Such hosts get no job more (slurm/decide.py), and are waited for. Whatever fails is logged.
        """
        if self._applied or not (self._written or configure.differing(self._system, self._wanted)):
            self._applied = True
            return
        left = configure.blocked(self._slices, known.nodes)
        if not left:
            try:
                self._written = True  # what fails from here on is done again
                configure.write(self._system, self._wanted)
                configure.start(self._system, changed=True)
                self._applied = True
            except InfraError as error:
                _LOG.warning("%s", error)
                return
        if left and left != self._reported:
            _LOG.info("new files of Slurm's wait for %s, which the settings don't have any more", left[0])
        self._reported = left
