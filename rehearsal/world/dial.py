"""ssh's way to a host by its name, as through Identity-Aware Proxy: asks the cloud for the address, connects
from the range that the proxy forwards from, and joins the two ends.

python -m rehearsal.world.dial tpu-dev-w0 22   (ProxyCommand of the world's ssh configuration)
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
from pathlib import Path

from rehearsal.cloud.control import Control
from rehearsal.errors import RehearsalError, WorldError
from rehearsal.hosts.network import IAP_ADDRESS

_TIMEOUT_S = 15


def address_of(status: dict[str, object], name: str) -> str:
    """The internal address of the running host with this name; WorldError names those there are."""
    nodes = status["nodes"]
    assert isinstance(nodes, list)
    hosts = {host["name"]: host for node in nodes for host in node["hosts"]}
    if name not in hosts:
        raise WorldError(f"no host is called {name}; hosts: {', '.join(sorted(hosts)) or 'none'}")
    if not hosts[name]["running"]:
        raise WorldError(f"{name} is switched off")
    return str(hosts[name]["address"])


def join(connection: socket.socket) -> None:
    """Copy standard input to the connection and back until either ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is connection:
                    received = connection.recv(1 << 16)
                    if not received:
                        return
                    _write(sys.stdout.fileno(), received)
                else:
                    typed = os.read(sys.stdin.fileno(), 1 << 16)
                    if not typed:
                        selector.unregister(sys.stdin.fileno())
                        connection.shutdown(socket.SHUT_WR)
                    else:
                        connection.sendall(typed)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> int:
    """Dial; an error goes to ssh's standard error as one line."""
    name, port = sys.argv[1], int(sys.argv[2])
    try:
        address = address_of(Control(Path(os.environ["REHEARSAL_CONTROL"])).status(), name)
        with socket.create_connection((address, port), _TIMEOUT_S, (IAP_ADDRESS, 0)) as connection:
            connection.settimeout(None)
            join(connection)
    except TimeoutError:
        # IAP's words (https://cloud.google.com/iap/docs/faq#what_are_the_error_codes).
        said = "Error while connecting [4003: 'failed to connect to backend']. (Failed to connect to port"
        fix = "    fix: a firewall rule must allow it from 35.235.240.0/20 (network:sshSourceRanges)"
        print(f"{name}: {said} {port})\n{fix}", file=sys.stderr)
        return 1
    except (RehearsalError, OSError) as refused:
        print(f"{name}: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
