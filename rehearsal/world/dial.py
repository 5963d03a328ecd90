"""ssh's way to a host by its name, as through Identity-Aware Proxy: gets the address of the cloud, connects
from the range that the proxy forwards from, and hands the connection over.

python -m rehearsal.world.dial tpu-dev-w0 22   (ProxyCommand of the world's ssh configuration)
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from rehearsal.cloud.control import LOGIN, TUNNEL, Control, ControlError
from rehearsal.errors import RehearsalError, WorldError
from rehearsal.hosts.network import IAP_ADDRESS

_TIMEOUT_S = 15


def address_of(status: dict[str, object], name: str) -> str:
    """Return the internal address of the running host with this name; WorldError lists the known names."""
    nodes, instances = status["nodes"], status["instances"]
    assert isinstance(nodes, list)
    assert isinstance(instances, list)
    hosts = {host["name"]: host for node in nodes for host in node["hosts"]}
    hosts |= {instance["name"]: instance for instance in instances}
    if name not in hosts:
        raise WorldError(f"no host is called {name}; hosts: {', '.join(sorted(hosts)) or 'none'}")
    if not hosts[name]["running"]:
        raise WorldError(f"{name} is switched off")
    return str(hosts[name]["address"])


def main() -> int:
    """Dial; an error goes to ssh's standard error as one line."""
    name, port = sys.argv[1], int(sys.argv[2])
    try:
        control = Control(Path(os.environ["REHEARSAL_CONTROL"]))
        address = address_of(control.status(), name)
        control.login(os.environ["CLOUDSDK_CORE_ACCOUNT"], name)
        with socket.create_connection((address, port), _TIMEOUT_S, (IAP_ADDRESS, 0)) as connection:
            connection.settimeout(None)
            with socket.socket(fileno=os.dup(sys.stdout.fileno())) as ssh:  # ProxyUseFdpass of ssh_config(5)
                socket.send_fds(ssh, [b"\0"], [connection.fileno()])
    except TimeoutError:
        # IAP's words (https://cloud.google.com/iap/docs/faq#what_are_the_error_codes).
        output = "Error while connecting [4003: 'failed to connect to backend']. (Failed to connect to port"
        fix = "    fix: a firewall rule must allow it from 35.235.240.0/20 (network:sshSourceRanges)"
        print(f"{name}: {output} {port})\n{fix}", file=sys.stderr)
        return 1
    except ControlError as refused:
        # In the words of the tunnel (the same page) and sshd; without access to the node, in gcloud's.
        words = {
            TUNNEL: "Error while connecting [4033: 'not authorized'].",
            LOGIN: f"{os.environ['CLOUDSDK_CORE_ACCOUNT']}: Permission denied (publickey).",
        }
        reason = next(
            (text for permission, text in words.items() if permission in str(refused)), str(refused)
        )
        print(f"{name}: {reason}", file=sys.stderr)
        return 1
    except (RehearsalError, OSError) as refused:
        print(f"{name}: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
