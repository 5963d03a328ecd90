"""The client of the control socket: actions of a scenario on the cloud that no API of Google's has.

HTTP with JSON bodies over a Unix socket; the calls are those of docs/internals/architecture.md.
"""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.errors import RehearsalError

_TIMEOUT_S = 60.0
# Permissions for `gcloud … tpu-vm ssh --plain`, then for the tunnel and OS Login:
# https://cloud.google.com/iap/docs/using-tcp-forwarding, https://cloud.google.com/compute/docs/oslogin
TUNNEL, LOGIN = "iap.tunnelInstances.accessViaIAP", "compute.instances.osLogin"
SSH = ("tpu.nodes.get", "compute.projects.get", TUNNEL, LOGIN)
# For `gcloud compute ssh`; OS Login wants the last one where the instance has a service account:
# https://cloud.google.com/compute/docs/oslogin/set-up-oslogin#configure_users
SSH_TO_INSTANCE, ACT_AS = ("compute.instances.get", TUNNEL, LOGIN), "iam.serviceAccounts.actAs"


class ControlError(RehearsalError):
    """The cloud can't be reached by its control socket, or refuses a request."""


class Control:
    """A client of the socket. Every call may raise ControlError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def status(self) -> JsonObject:
        """Return clock, nodes, instances, deletions, requests, faults, mistakes, dropped packets."""
        return self._call("GET", "/status")

    def access(self) -> JsonObject:
        """Return `served`, all methods, and `asked`, permissions with the roles that grant each."""
        return self._call("GET", "/access")

    def login(self, account: str, host: str) -> None:
        """Raise ControlError unless the account may log in to a host through Identity-Aware Proxy."""
        self._call("POST", "/login", {"account": account, "host": host})

    def preempt(self, node: str, *, notice: bool) -> None:
        """Take a node away: with notice 30 s before, or at once."""
        self._call("POST", "/preempt", {"node": node, "notice": notice})

    def maintain(self, node: str, *, ends: str) -> None:
        """Start maintenance: REPAIRING, then `ends` (READY, TERMINATED, UNKNOWN; PENDING: a notice)."""
        self._call("POST", "/maintain", {"node": node, "ends": ends})

    def cut_power(self, host: str) -> None:
        """Cut the power of one host."""
        self._call("POST", "/cut-power", {"host": host})

    def set_clock(self, rate: float) -> None:
        """Set the rate of virtual time, in virtual seconds per real second."""
        self._call("POST", "/clock", {"rate": rate})

    def jump(self, virtual_s: float) -> None:
        """Advance virtual time at once."""
        self._call("POST", "/clock", {"jump_s": virtual_s})

    def add_fault(self, rule: JsonObject) -> str:
        """Put a fault rule in force (rehearsal/cloud/door/faults.py); its id."""
        return str(self._call("POST", "/faults", rule)["id"])

    def set_quota(self, name: str, place: str, chips: int) -> None:
        """Set the chips of a quota in a region or zone."""
        self._call("POST", "/quotas", {"name": name, "place": place, "chips": chips})

    def faults(self) -> list[JsonObject]:
        """Return the rules with their counts of observations."""
        rules: Any = self._call("GET", "/faults")
        return list(rules)

    def add_snapshot(self, name: str, image: Path, *, disk_size_gb: int) -> None:
        """Add a snapshot with the content of an ext4 image."""
        self._call("POST", "/snapshots", {"name": name, "image": str(image), "disk_size_gb": disk_size_gb})

    def clusters(self, what: str = "", **body: Any) -> JsonObject:
        """Send a request of a control plane (services/container/control_planes.py), or `lose` nodes."""
        return self._call("POST", f"/clusters/{what}".rstrip("/"), body)

    def requests(self, since: int = 0) -> JsonObject:
        """Return requests from number `since` on, and `next`, the number to continue from."""
        return self._call("GET", f"/requests?since={since}")

    def _call(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        connection = _UnixConnection(self._path)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            fix = "tpu rehearsal status"
            raise ControlError(f"no emulated cloud answers on {self._path}: {error}", fix) from None
        finally:
            connection.close()
        try:
            answer: JsonObject = json.loads(text)
        except ValueError:
            shown = text[:200].decode(errors="replace")
            raise ControlError(f"{method} {path}: {response.status} {shown}") from None
        if response.status >= 400:
            raise ControlError(f"{method} {path}: {answer['error']}")
        return answer


class _UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
