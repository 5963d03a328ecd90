"""Pulls of images by nodes: who reaches which registry, and may read it.

What is in a standard repository isn't emulated: it has every image. The words are containerd's, as users have
reported them (cert-manager#5623, terraform-google-kubernetes-engine#1779).
"""

from __future__ import annotations

from google_facts import registries
from google_facts.registries import Repository
from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam

_ADDRESS = "192.0.2.53:443"


class Pulls:
    """Decides about pulls."""

    def __init__(self, world: World, iam: Iam) -> None:
        self._world, self._iam = world, iam

    def refusal(self, image: str, cluster: JsonObject, pool: JsonObject) -> str:
        """Return the error of a node's pull; empty where it succeeds."""
        # By its digest alone, if it has one.
        name, _, digest = image.partition("@")
        path, _, tag = name.partition("/")[2].partition(":")
        host, reference = registries.host(image), digest or tag or "latest"
        bare = f"{host}/{path}{'@' if digest else ':'}{reference}"
        where = f"https://{host}/v2/{path}/manifests/{reference}"
        why = (
            f'failed to do request: Head "{where}": dial tcp {_ADDRESS}: i/o timeout'
            if not self._reached(image, cluster, pool)
            else self._denied(image, where, pool) or self._missing(image, path, digest, bare)
        )
        return (
            f'rpc error: code = Unknown desc = failed to pull and unpack image "{bare}": '
            f'failed to resolve reference "{bare}": {why}'
            if why
            else ""
        )

    def _reached(self, image: str, cluster: JsonObject, pool: JsonObject) -> bool:
        own = (pool.get("networkConfig") or {}).get("enablePrivateNodes")
        private = (cluster.get("privateClusterConfig") or {}).get("enablePrivateNodes")
        if not (private if own is None else own):
            return True
        network = cluster["networkConfig"]
        subnet = self._world.directory.get(network["subnetwork"], {})
        if registries.is_googles(image) and subnet.get("privateIpGoogleAccess"):
            return True
        routers = f"projects/{self._world.project}/regions/{cluster['location']}/routers/"
        return any(
            nat["sourceSubnetworkIpRangesToNat"].startswith("ALL_SUBNETWORKS")
            or any(entry["name"].endswith(network["subnetwork"]) for entry in nat.get("subnetworks", ()))
            for name, router in self._world.directory.items()
            if name.startswith(routers) and router["network"].endswith(network["network"])
            for nat in router.get("nats", ())
        )

    def _denied(self, image: str, where: str, pool: JsonObject) -> str:
        place = registries.repository(image)
        if place is None or registries.is_public(image):
            return ""
        account = pool["config"].get("serviceAccount") or "default"
        if account == "default":
            account = f"{self._world.number}-compute@developer.gserviceaccount.com"
        # A project of somebody else's grants nothing here.
        is_ours = place.project == self._world.project
        if is_ours and self._iam.holds(account, registries.PULL, place.full_name):
            return ""
        return (
            f"unexpected status from HEAD request to {where}: 403 Forbidden: denied: Permission "
            f'"{registries.PULL}" denied on resource "{place.full_name}" (or it may not exist)'
        )

    def _missing(self, image: str, path: str, digest: str, bare: str) -> str:
        place = registries.repository(image)
        upstream = registries.host(image)
        if place is not None and not registries.is_public(image):
            body = self._world.directory.get(place.full_name)
            if body is None:
                return f'name unknown: Repository "{place.name}" not found'
            if body.get("mode") != "REMOTE_REPOSITORY":
                return ""
            upstream, path = _upstream(place, body), path.split("/", 2)[2]
        if upstream == registries.KUBERNETES and digest not in registries.released_digests(path):
            return f"{bare}: not found"
        return ""


def _upstream(place: Repository, body: JsonObject) -> str:
    """Return the host behind a remote repository."""
    uri: str = body["remoteRepositoryConfig"]["commonRepository"]["uri"]
    host = uri.removeprefix("https://").rstrip("/")
    if host != registries.KUBERNETES:
        raise NotEmulatedError(f"A pull from {host}, by {place.full_name},")
    return host
