"""The API of a GKE cluster, as the account that is logged in: by the DNS name of its control plane.

https://cloud.google.com/kubernetes-engine/docs/concepts/network-isolation#dns-based-endpoint and
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from infra.errors import InfraError
from infra.google.client import NO_QUERY, Body, Client, Query, RequestError, or_none
from infra.google.failures import Failure, Kind

CONTAINER = "https://container.googleapis.com"
# Root of all control planes, where tests have them.
_CONTROL_PLANE = "TPU_CONTROL_PLANE_URL"
DRY_RUN: Query = {"dryRun": "All"}


class Cluster:
    """Requests to one control plane; every method raises RequestError."""

    def __init__(self, client: Client, endpoint: str):
        """`endpoint`: the control plane's DNS name."""
        self._client, self._url = client, os.environ.get(_CONTROL_PLANE) or f"https://{endpoint}"

    def items(self, path: str, query: Query = NO_QUERY) -> Iterator[dict[str, Any]]:
        """Yield a collection's objects, e.g. of `/apis/jobset.x-k8s.io/v1alpha2/jobsets`."""
        going_on: Query = query
        while True:
            page = self._client.json("GET", self._url + path, going_on)
            yield from page.get("items") or ()
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            going_on = {**query, "continue": token}

    def get(self, path: str) -> dict[str, Any] | None:
        """Return an object; None where there is none."""
        return or_none(lambda: self._client.json("GET", self._url + path))

    def create(self, path: str, manifest: Mapping[str, Any], query: Query = NO_QUERY) -> dict[str, Any]:
        """Create an object in a collection."""
        return self._client.json("POST", self._url + path, query, manifest)

    def delete(self, path: str) -> bool:
        """Delete an object, and what it owns before it; False where there is none."""
        body: Body = {"propagationPolicy": "Foreground"}
        answer = or_none(lambda: self._client.json("DELETE", self._url + path, NO_QUERY, body))
        return answer is not None

    def text(self, path: str, query: Query = NO_QUERY) -> str:
        """Return a text answer, such as a pod's log."""
        # requests takes text of no charset for Latin-1.
        return self._client.send("GET", self._url + path, query).content.decode("utf-8", "replace")


def cluster_named(client: Client, region: str, name: str, environment: str) -> Cluster:
    """Return the cluster of that name.

    Raises:
        InfraError: it isn't there, or has no DNS name.
        RequestError: it isn't known.
    """
    endpoint = endpoint_of(client, f"projects/{client.project}/locations/{region}/clusters/{name}")
    if endpoint is None:
        raise InfraError(f"there is no cluster {name} in {region}\n    fix: tpu up {environment} gke queue")
    return Cluster(client, endpoint)


def endpoint_of(client: Client, cluster: str) -> str | None:
    """DNS name of a cluster's control plane, by the cluster's full name; None where there is no such cluster.

    Raises:
        InfraError: it has no DNS name.
        RequestError: it isn't known.
    """
    resource = described(client, cluster)
    return None if resource is None else endpoint(resource)


def described(client: Client, cluster: str) -> dict[str, Any] | None:
    """Return a cluster by its full name; None where there is none. Raises RequestError: it isn't known."""
    return or_none(lambda: client.json("GET", f"{_container()}{cluster}"))


def every(client: Client, labels: Mapping[str, str]) -> Iterator[tuple[str, Cluster]]:
    """Name and cluster of all with these labels in the project; none where the API is off."""
    try:
        answer = client.json("GET", f"{_container()}projects/{client.project}/locations/-/clusters")
    except RequestError as error:
        if error.failure.kind is Kind.API_OFF:
            return
        raise
    if answer.get("missingZones"):
        why = f"{', '.join(answer['missingZones'])} can't be reached; the list isn't complete"
        raise RequestError(Failure(Kind.UNKNOWN, why))
    for cluster in answer.get("clusters") or ():
        if labels.items() <= cluster.get("resourceLabels", {}).items():
            yield cluster["name"], Cluster(client, endpoint(cluster))


def _container() -> str:
    """Return the base URL of the API; the variable of Pulumi's provider overrides it."""
    return os.environ.get("GOOGLE_CONTAINER_CUSTOM_ENDPOINT", f"{CONTAINER}/v1/")


def endpoint(cluster: Mapping[str, Any]) -> str:
    """Return the DNS name of a cluster's control plane. Raises InfraError where it has none."""
    config = cluster.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
    if not config.get("endpoint"):
        raise InfraError(
            f"the control plane of {cluster['name']} has no DNS name\n"
            "    fix: gcloud container clusters update --enable-dns-access, or use the gke layer's cluster"
        )
    return str(config["endpoint"])
