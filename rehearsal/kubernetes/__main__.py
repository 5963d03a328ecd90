"""The process beside the cloud that runs what is behind its clusters.

python -m rehearsal.kubernetes --config FILE   (run by the world's first process)

It looks at the emulated GKE API through the control socket, and ends with the world.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rehearsal.authority import Pair
from rehearsal.cloud.control import Control, ControlError
from rehearsal.errors import RehearsalError
from rehearsal.kubernetes.cluster import Cluster, with_name
from rehearsal.kubernetes.node import docker
from rehearsal.kubernetes.node.images import table
from rehearsal.kubernetes.node.surroundings import Surroundings
from rehearsal.kubernetes.plane.api import Object

log = logging.getLogger("rehearsal.kubernetes")
_EVERY_S = 0.3
_ENDING = "STOPPING"


@dataclass(frozen=True)
class ProcessPaths:
    """Paths of the process.

    `certificate` and `key`: of Google's names; `debian`: the root of bare containers; `images`: built ones.
    """

    control: Path
    folder: Path
    certificate: Path
    key: Path
    hosts_file: Path
    ca_bundle: Path
    debian: Path
    images: Path

    @staticmethod
    def load(path: Path) -> ProcessPaths:
        """Return the configuration in a JSON file."""
        return ProcessPaths(**{key: Path(value) for key, value in json.loads(path.read_text()).items()})


class _Stop(Exception):  # noqa: N818 - a request, not an error
    """SIGTERM arrived."""


class Keeper:
    """Keeper of a control plane for the existing cluster."""

    def __init__(self, config: ProcessPaths) -> None:
        self._config = config
        self._control = Control(config.control)
        self._cluster: Cluster | None = None
        self._failed: set[str] = set()
        self._nodes: dict[str, int] = {}
        self._ready = ""
        self._around = Surroundings(
            _names(config.hosts_file.read_text()),
            config.ca_bundle,
            image=lambda name: docker.find_built(config.images, name, config.debian),
        )

    def run(self) -> None:
        """Until SIGTERM."""
        try:
            while True:
                try:
                    answer = self._control.clusters()
                    self._look(answer["clusters"], answer["rate"])
                except ControlError as error:
                    log.info("%s", error)  # it starts, or ends
                except RehearsalError as error:
                    log.warning("%s", error)
                time.sleep(_EVERY_S)
        finally:
            self._end()

    def _look(self, described: list[Object], rate: float) -> None:
        clusters = {cluster["name"]: cluster for cluster in described if cluster["body"]["status"] != _ENDING}
        self._failed &= clusters.keys()
        if self._cluster and self._cluster.name not in clusters:
            self._end()
        for name, cluster in clusters.items():
            if self._cluster is None and name not in self._failed:
                self._begin(cluster)
        if self._cluster:
            self._cluster.follow(clusters[self._cluster.name], rate)
            if (nodes := self._cluster.nodes()) != self._nodes:
                self._nodes = nodes
                self._report(self._cluster.name, "ready", self._ready)

    def _begin(self, described: Object) -> None:
        name = described["name"]
        folder = self._config.folder / f"{name.rpartition('/')[2]}-{time.time_ns()}"
        public = Pair(self._config.certificate, self._config.key)
        cluster = Cluster(self._control, described, folder, public, table(self._config.debian), self._around)
        self._report(name, "starting", "")
        try:
            cluster.start()
        except RehearsalError as error:
            self._failed.add(name)
            cluster.stop()
            self._report(name, "failed", str(error))
            return
        self._cluster = cluster
        self._write_hosts(cluster.endpoint)
        seconds, memory = cluster.control_plane.ready_s, sum(cluster.control_plane.memory_mib().values())
        self._ready = f"after {seconds:.1f} s, with {memory:.0f} MiB"
        self._report(name, "ready", self._ready)

    def _end(self) -> None:
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            self._write_hosts("")
            cluster.stop()
            self._nodes = {}
            log.info("%s is gone", cluster.name)

    def _write_hosts(self, name: str) -> None:
        """In place: the file is mounted over /etc/hosts."""
        path = self._config.hosts_file
        path.write_text(with_name(path.read_text(), name))

    def _report(self, name: str, state: str, message: str) -> None:
        log.info("%s: %s %s %s", name, state, message, self._nodes)
        self._control.clusters("report", name=name, state=state, message=message, nodes=self._nodes)


def _names(hosts: str) -> dict[str, str]:
    """Google's names in a hosts file, and their addresses."""
    lines = (line.split() for line in hosts.splitlines())
    return {name: address for address, *names in lines for name in names if address[:3] in ("169", "199")}


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _Stop


def main() -> int:
    """Parse, run; what a user can mend is printed in one line."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.kubernetes", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON, see Config")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.suppress(_Stop):
        Keeper(ProcessPaths.load(arguments.config)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
