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
MADE = Callable[[Door, str], Client]


@dataclass(frozen=True)
class Row:
    """A collection. `{id}` in bodies is the id of the resource.

    Attributes:
        method, version: what its method ids begin with, and the version of the document.
        make: its client, of a principal.
        body, change: a resource that is fine, and what an update changes.
        wrong: what of a body Google refuses with 400, beside an id that can't be one.
        missing: what of a body names something that isn't there; None where nothing can be named.
        permission: what creating asks for.
        viewer: the role on one resource that lets somebody get it.
        absent: the methods that the API doesn't have, `nextPageToken` where its lists have no pages, and
            `name` where the server makes the names.
        unserved: methods of the API that the emulation doesn't have.
    """

    method: str
    version: str
    make: MADE
    parent: str
    body: Any
    change: Any
    permission: str
    wrong: Any = None
    missing: Any = None
    viewer: str = "roles/viewer"
    absent: frozenset[str] = field(default_factory=frozenset)
    unserved: frozenset[str] = field(default_factory=frozenset)


def gapic(
    package: Any, client: Any, noun: str, host: str, collection: str, kind: type[Gapic] = Gapic, **more: Any
) -> MADE:
    return lambda door, principal: kind(package, client, noun, host, collection, door, principal, **more)


def discovered(method: str, version: str, host: str = "") -> MADE:
    return lambda door, principal: Discovered(method, version, door, principal, host)
