"""The cloud process: `python -m rehearsal.cloud --config FILE`, inside the world's namespaces."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig, CloudConfigError, address
from rehearsal.errors import RehearsalError
from rehearsal.hosts.bootdisk import Access
from rehearsal.hosts.machine import Hosts, NoHosts, NspawnHosts
from rehearsal.hosts.network import Network


async def serve(config: CloudConfig) -> None:
    """Run until SIGTERM or SIGINT, then end requests, background work and machines, in that order."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as ending:
        hosts: Hosts = NoHosts()
        network: Network | None = None
        if (machines := _machines(config)) is not None:
            network = Network((address(config.front_door)[0], address(config.metadata)[0]))
            network.open()
            ending.callback(network.close)
            hosts = nspawn = NspawnHosts(config.directory / "machines", *machines, network)
            ending.push_async_callback(nspawn.close)
            await nspawn.open()
        cloud = Cloud(config, hosts, firewall=network.firewall if network else None)
        ending.push_async_callback(cloud.close)
        await cloud.start()
        await stop.wait()


def _machines(config: CloudConfig) -> tuple[Path, Access] | None:
    """Return the image and the files that machines get a copy of; None for a cloud without machines."""
    if config.image is None:
        return None
    files = (config.hosts_file, config.ca_certificate, config.ca_bundle)
    if None in files or not config.ssh_public_key:
        raise CloudConfigError(
            "image: needs hosts_file, ca_certificate, ca_bundle and ssh_public_key beside it"
        )
    key = config.directory / "authorized_key"
    config.directory.mkdir(parents=True, exist_ok=True)
    key.write_text(config.ssh_public_key)
    hosts_file, ca_certificate, ca_bundle = (path for path in files if path is not None)
    return config.image, Access(hosts_file, ca_certificate, ca_bundle, key)


def main() -> int:
    """Parse, run; what a user can mend is said in one line."""
    parser = argparse.ArgumentParser(
        prog="python -m rehearsal.cloud",
        description="Serve Google's APIs, the metadata server and the control socket.",
        epilog="example: python -m rehearsal.cloud --config /tmp/world/cloud.json",
    )
    parser.add_argument("--config", type=Path, required=True, help="JSON, see rehearsal/cloud/config.py")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(CloudConfig.load(arguments.config)))
    except RehearsalError as error:
        print(
            f"rehearsal.cloud: {error}",
            *([f"fix: {error.fix}"] if error.fix else []),
            sep="\n",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
