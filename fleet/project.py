"""What a doctor asks Google beside a look: who is logged in, what is switched on, granted, offered, allowed.

https://developers.google.com/identity/openid-connect/openid-connect#obtaininguserprofileinformation
https://cloud.google.com/service-usage/docs/reference/rest/v1/services/list
https://cloud.google.com/service-usage/docs/reference/rest/v1beta1/services.consumerQuotaMetrics/list
https://cloud.google.com/resource-manager/reference/rest/v1/projects/testIamPermissions
https://cloud.google.com/iam/docs/reference/rest/v1/projects.serviceAccounts/testIamPermissions
https://cloud.google.com/storage/docs/json_api/v1/buckets/testIamPermissions
https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.acceleratorTypes/list
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fleet import google
from fleet.failures import Kind
from fleet.google import AskedError, Google
from infra.catalog import region_of
from infra.nodes import Node

_USERINFO = "https://openidconnect.googleapis.com/v1/userinfo"
_USAGE = "https://serviceusage.googleapis.com"
_PROJECTS = "https://cloudresourcemanager.googleapis.com/v1/projects"
_IAM = "https://iam.googleapis.com/v1"
UNLIMITED = -1


@dataclass(frozen=True)
class Quota:
    """One of the limits that a v6e node counts for: all of them are enforced.

    Names are those of refusals and of `gcloud quotas`, as users have met them (marin-community/marin#1612);
    metrics those of Service Usage. A reservation counts for on demand
    (https://cloud.google.com/tpu/docs/consumption-options).
    """

    spot: bool
    dimension: str  # "region" or "zone"
    place: str

    @property
    def name(self) -> str:
        """As Google calls it when it refuses."""
        kind = "Preemptible" if self.spot else ""
        return f"TPUV6E{kind}PerProjectPer{self.dimension.capitalize()}ForTPUAPI"

    @property
    def metric(self) -> str:
        """As Service Usage lists it."""
        return f"tpu.googleapis.com/tpu-v6e{'-preemptible' if self.spot else ''}"


def chips_wanted(nodes: Sequence[Node]) -> dict[Quota, int]:
    """What some nodes need of each quota where they are."""
    found: dict[Quota, int] = {}
    for node in nodes:
        for quota in _quotas(node, node.zone):
            found[quota] = found.get(quota, 0) + node.kind.chips
    return found


def chips_to_move(nodes: Sequence[Node]) -> dict[Quota, int]:
    """What the largest of the nodes that may be moved to a place needs there, where none is yet."""
    here = chips_wanted(nodes)
    found: dict[Quota, int] = {}
    for node in nodes:
        for quota in (quota for zone in node.places for quota in _quotas(node, zone)):
            if quota not in here:
                found[quota] = max(found.get(quota, 0), node.kind.chips)
    return found


def _quotas(node: Node, zone: str) -> tuple[Quota, Quota]:
    return Quota(node.spot, "region", region_of(zone)), Quota(node.spot, "zone", zone)


class Limits:
    """The limits of a project's quotas."""

    def __init__(self, metrics: Sequence[Mapping[str, Any]]):
        self._found: dict[tuple[str, str, str], int] = {}
        for metric in metrics:
            for limit in metric.get("consumerQuotaLimits") or ():
                dimension = re.fullmatch(r"1/\{project\}/\{(region|zone)\}", str(limit.get("unit")))
                for bucket in limit.get("quotaBuckets") or () if dimension else ():
                    place = (bucket.get("dimensions") or {}).get(dimension[1] if dimension else "", "")
                    key = (str(metric.get("metric")), dimension[1] if dimension else "", place)
                    # A limit of 0 isn't written out: JSON made of protocol buffers leaves zeros away.
                    self._found[key] = int(bucket.get("effectiveLimit", 0))

    def of(self, quota: Quota) -> int | None:
        """Chips; UNLIMITED; None where Google lists no such quota."""
        everywhere = self._found.get((quota.metric, quota.dimension, ""))
        return self._found.get((quota.metric, quota.dimension, quota.place), everywhere)


class Project(Google):
    """One project, with questions that a look doesn't ask. Each raises AskedError."""

    def account(self) -> str:
        """Address of the account that is logged in; empty where its login doesn't say."""
        try:
            return str(self._ask("GET", _USERINFO, {}).json().get("email") or "")
        except AskedError as error:
            kind, said = error.failure.kind, error.failure.message
            if kind is Kind.PERMISSION or (kind is Kind.LOGIN and "invalid_grant" not in said):
                return ""  # a good login, that wasn't asked for an address
            raise
        except (ValueError, AttributeError):
            return ""

    def services(self) -> frozenset[str]:
        """Services that are switched on."""
        url = f"{_USAGE}/v1/projects/{self.project}/services"
        pages = self._pages(url, {"filter": "state:ENABLED", "pageSize": "200"})
        return frozenset(
            str(one.get("name")).rpartition("/")[2] for page in pages for one in page.get("services") or ()
        )

    def limits(self) -> Limits:
        """What the project may have of Cloud TPU."""
        url = f"{_USAGE}/v1beta1/projects/{self.project}/services/tpu.googleapis.com/consumerQuotaMetrics"
        return Limits(
            [one for page in self._pages(url, {"view": "FULL"}) for one in page.get("metrics") or ()]
        )

    def held(self, permissions: Sequence[str]) -> frozenset[str]:
        """Those of the permissions that the account has on the project."""
        return self._held(f"{_PROJECTS}/{self.project}:testIamPermissions", permissions)

    def held_on_account(self, email: str, permissions: Sequence[str]) -> frozenset[str]:
        """The same on a service account of the project."""
        url = f"{_IAM}/projects/{self.project}/serviceAccounts/{email}:testIamPermissions"
        return self._held(url, permissions)

    def held_on_bucket(self, bucket: str, permissions: Sequence[str]) -> frozenset[str]:
        """The same on a bucket."""
        asked = urlencode([("permissions", one) for one in permissions])
        url = f"{google.STORAGE}/storage/v1/b/{bucket}/iam/testPermissions?{asked}"
        return _permissions(self._json(self._ask("GET", url, {})))

    def accelerator_types(self, zone: str) -> frozenset[str]:
        """What a zone offers to this project, such as v6e-8."""
        return self._offered(zone, "acceleratorTypes", "type")

    def runtime_versions(self, zone: str) -> frozenset[str]:
        """Images for the hosts of a zone."""
        return self._offered(zone, "runtimeVersions", "version")

    def _offered(self, zone: str, collection: str, key: str) -> frozenset[str]:
        url = f"{google.TPU}/v2/projects/{self.project}/locations/{zone}/{collection}"
        pages = self._pages(url, {"pageSize": "1000"})
        return frozenset(str(one.get(key)) for page in pages for one in page.get(collection) or ())

    def _held(self, url: str, permissions: Sequence[str]) -> frozenset[str]:
        content = json.dumps({"permissions": list(permissions)}).encode()
        kind = {"Content-Type": "application/json"}
        return _permissions(self._json(self._ask("POST", url, {}, content, kind)))


def _permissions(said: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(map(str, said.get("permissions") or ()))
