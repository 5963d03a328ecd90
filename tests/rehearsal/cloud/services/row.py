"""A row of the table of driven services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from official import PROJECT, Client, Discovered, Door, Gapic

P = f"projects/{PROJECT}"
L, ZONE = f"{P}/locations/us-east5", f"{P}/locations/us-east5-b"
TOPIC, NO_TOPIC = f"{P}/topics/topic-of-tests", f"{P}/topics/none"
EMAIL, NOBODY = (f"{name}@{PROJECT}.iam.gserviceaccount.com" for name in ("worker", "nobody"))
NET, SUBNET = f"{P}/global/networks/net", f"{P}/regions/us-east5/subnetworks/subnet"
IMAGE = "us-docker.pkg.dev/cloudrun/container/hello"
IAM = frozenset({"getIamPolicy", "setIamPolicy", "testIamPermissions"})
BY = Callable[["Row", Door, str], Client]


def gapic(package: str, client: str, noun: str, kind: type[Gapic] = Gapic, **more: Any) -> BY:
    """A client of google-cloud-python, by the names of its package and class."""

    def make(row: Row, door: Door, principal: str) -> Client:
        host, collection = row.method.partition(".")[0], row.method.rpartition(".")[2]
        return kind(package, client, noun, host, collection, door, principal, **more)

    return make


def discovered(kind: type[Discovered] = Discovered, host: str = "") -> BY:
    """google-api-python-client; `host` where it isn't the API's."""
    return lambda row, door, principal: kind(row.method, row.version, door, principal, host)


_DISCOVERED = discovered()


@dataclass(frozen=True)
class Row:
    """A collection. `{id}` in bodies is the id of the resource.

    Attributes:
        method, version: what its method ids begin with, and the version of the document.
        by: makes its client.
        body, change: a resource that is fine, and what an update changes.
        wrong: what of a body Google refuses with 400, beside an id that can't be one.
        missing: what of a body names something that isn't there; None where nothing can be named.
        viewer: the role on one resource that lets somebody get it.
        absent: the methods that the API doesn't have, `nextPageToken` where its lists have no pages, and
            `name` where the server makes the names.
        unserved: methods of the API that the emulation doesn't have.
    """

    method: str
    parent: str
    body: Any
    change: Any
    by: BY = _DISCOVERED
    version: str = "v1"
    wrong: Any = None
    missing: Any = None
    viewer: str = "roles/viewer"
    absent: frozenset[str] = field(default_factory=frozenset)
    unserved: frozenset[str] = field(default_factory=frozenset)

    def make(self, door: Door, principal: str) -> Client:
        """Its client, of a principal."""
        return self.by(self, door, principal)

    @property
    def needed(self) -> str:
        """The permission to create one."""
        api, collection = self.method.partition(".")[0], self.method.rpartition(".")[2]
        return f"{api}.{collection}.create"
