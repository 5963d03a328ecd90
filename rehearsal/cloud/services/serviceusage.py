"""Service Usage: the APIs that are enabled, the refusal of others, and quotas of TPUs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from rehearsal.cloud.collections.listing import page
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.service import Call, Handler, Method
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam, agent
from rehearsal.cloud.iam.oauth import account_id
from rehearsal.cloud.services.tpu.quotas import OF_SERVICES, Quotas

# Of what is emulated, what a new project has on
# (https://cloud.google.com/service-usage/docs/enabled-service).
NEW_PROJECT = (
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "serviceusage.googleapis.com",
    "storage.googleapis.com",
    "storage-api.googleapis.com",
    "storage-component.googleapis.com",
)
# Never refused: these calls are charged to the project of the caller's OAuth client, not to the one they
# are about, so that a fresh project can be looked up and have its first API enabled.
_ALWAYS = frozenset({"cloudresourcemanager", "iamcredentials", "oauth2", "serviceusage"})
_TITLES = {
    "cloudkms": "Cloud Key Management Service (KMS) API",
    "compute": "Compute Engine API",
    "iam": "Identity and Access Management (IAM) API",
    "logging": "Cloud Logging API",
    "monitoring": "Cloud Monitoring API",
    "storage": "Cloud Storage API",
    "tpu": "Cloud TPU API",
}
# Virtual seconds until an API is on or off: of the order of the real ones, and this project's choice.
_CHANGE_S = 4.0
_MAX_BATCH = 20


@cache
def _known() -> frozenset[str]:
    """Return the services of all discovery documents."""
    documents = files("googleapiclient") / "discovery_cache" / "documents"
    return frozenset({f"{item.name.partition('.')[0]}.googleapis.com" for item in documents.iterdir()}).union(
        NEW_PROJECT
    )


class ServiceUsage:
    """The serviceusage API, and the front door's check of other APIs."""

    api = "serviceusage"
    versions = ("v1", "v1beta1")

    def __init__(
        self,
        world: World,
        operations: Operations,
        enabled: Iterable[str] = NEW_PROJECT,
        quotas: Quotas | None = None,
        iam: Iam | None = None,
    ) -> None:
        self._world, self._iam = world, iam
        self._quotas = quotas or Quotas()
        self._operations = operations
        self._enabled: dict[str, float] = {}  # and the time from which it answers
        for name in enabled:
            self._enable(name, float("-inf"))

    def require(self, api: str) -> None:
        """ApiError 403, as Google words it, unless the API is enabled in the project."""
        service = f"{api}.googleapis.com"
        if api in _ALWAYS or self._enabled.get(service, float("inf")) <= self._world.clock.now():
            return
        consumer = f"projects/{self._world.number}"
        title = _TITLES.get(api, service)
        url = (
            f"https://console.developers.google.com/apis/api/{service}/overview?project={self._world.number}"
        )
        text = (
            f"{title} has not been used in project {self._world.number} before or it is disabled. "
            f"Enable it by visiting {url} then retry. If you enabled this API recently, wait a few minutes "
            "for the action to propagate to our systems and retry."
        )
        info: JsonObject = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "SERVICE_DISABLED",
            "domain": "googleapis.com",
            "metadata": {
                "service": service,
                "serviceTitle": title,
                "consumer": consumer,
                "containerInfo": self._world.number,
                "activationUrl": url,
            },
        }
        links: JsonObject = {
            "@type": "type.googleapis.com/google.rpc.Help",
            "links": [{"description": "Google developers console API activation", "url": url}],
        }
        raise ApiError(403, "PERMISSION_DENIED", text, reason="accessNotConfigured", details=[info, links])

    def methods(self) -> Mapping[str, Method]:
        """By method id; v1 and v1beta1 share them."""
        table: dict[str, tuple[Handler, str | None]] = {
            "services.list": (self._list, "services.list"),
            "services.get": (self._get, "services.get"),
            "services.enable": (self._switch, None),  # refused in words of its own
            "services.batchEnable": (self._batch_enable, None),
            "services.disable": (self._switch, "services.disable"),
            "services.generateServiceIdentity": (self._identity, "services.enable"),
            "services.consumerQuotaMetrics.list": (self._quota_metrics, "quotas.get"),
            "operations.get": (self._operation, None),
        }
        return {
            f"serviceusage.{name}": Method(handler, permission and f"serviceusage.{permission}")
            for name, (handler, permission) in table.items()
        }

    async def _list(self, call: Call) -> JsonObject:
        self._check_parent(call.path["parent"])
        desired = {"state:ENABLED": True, "state:DISABLED": False, "": None}
        filter_ = call.query.get("filter", "")
        if filter_ not in desired:
            raise bad_request(
                f"Invalid filter '{filter_}': 'state:ENABLED' and 'state:DISABLED' are supported."
            )
        names = [
            name
            for name in sorted(_known())
            if desired[filter_] is None or (name in self._enabled) == desired[filter_]
        ]
        services, token = page(call, [self._service(name) for name in names], 50)
        return {"services": services} | ({"nextPageToken": token} if token else {})

    async def _quota_metrics(self, call: Call) -> JsonObject:
        """List the limits for each place, in the BASIC view too."""
        name = self._named(call.path["parent"])
        if name not in OF_SERVICES:
            raise NotEmulatedError(f"A quota of {name}")
        metrics, token = page(call, self._quotas.metrics(f"projects/{self._world.number}", name))
        return {"metrics": metrics} | ({"nextPageToken": token} if token else {})

    async def _get(self, call: Call) -> JsonObject:
        return self._service(self._named(call.path["name"]))

    async def _batch_enable(self, call: Call) -> JsonObject:
        self._check_parent(call.path["parent"])
        names = (call.body or {}).get("serviceIds", [])
        if not 1 < len(names) <= _MAX_BATCH:  # of a single one, services.enable
            raise bad_request(
                f"Between 2 and {_MAX_BATCH} services can be enabled at once, not {len(names)}."
            )
        for name in names:
            self._check_known(name)
        return await self._switch(call)

    async def _switch(self, call: Call) -> JsonObject:
        """Enable or disable the services that the request names."""
        verb = call.method_id.rpartition(".")[2]
        batch: list[str] = (call.body or {}).get("serviceIds", [])
        names = batch or [self._named(call.path["name"])]
        if verb != "disable":
            self._require_enable(call.principal, names)

        async def work() -> JsonObject:
            await self._world.clock.sleep(_CHANGE_S)
            since = self._world.clock.now() + self._world.lags.api_s
            for name in names:
                if verb == "disable":
                    self._enabled.pop(name, None)
                else:
                    self._enable(name, since)
            services = [self._service(name) for name in names]
            return {"services": services} if batch else {"service": services[0]}

        return self._start(call, f"{verb[0].upper()}{verb[1:]}Service{'s' if batch else ''}Response", work)

    def _require_enable(self, principal: str, names: Iterable[str]) -> None:
        """Raise ApiError 403 unless the principal may enable services, with a line for each.

        https://github.com/GoogleCloudPlatform/cloud-foundation-fabric/issues/2985
        """
        permission = "serviceusage.services.enable"
        if self._iam is None or self._iam.holds(principal, permission, f"projects/{self._world.project}"):
            return
        text = "\n".join(f"Permission denied to enable service [{name}]" for name in names)
        info: JsonObject = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "AUTH_PERMISSION_DENIED",
            "domain": "serviceusage.googleapis.com",
        }
        raise ApiError(403, "PERMISSION_DENIED", text, reason="forbidden", details=[info])

    def _enable(self, name: str, since: float) -> None:
        self._enabled.setdefault(name, since)
        if self._iam is not None:
            lag_s = 0.0 if since == float("-inf") else None  # from the start: all has spread
            self._iam.make_agents(name.partition(".")[0], "enable", lag_s)

    async def _identity(self, call: Call) -> JsonObject:
        """Create and return the service's agent (v1beta1 only)."""
        api = self._named(call.path["parent"]).partition(".")[0]
        email = agent(self._world, api)

        async def work() -> JsonObject:
            await self._world.clock.sleep(_CHANGE_S)
            if self._iam is not None:
                self._iam.make_agents(api, "identity")
            return {"email": email, "uniqueId": account_id(email)}

        return self._start(call, "ServiceIdentity", work)

    async def _operation(self, call: Call) -> JsonObject:
        return self._operations.get(call.path["name"])

    def _start(self, call: Call, response: str, work: Any) -> JsonObject:
        resources = [f"services/{name}" for name in (call.body or {}).get("serviceIds", ())]
        metadata: JsonObject = {
            "@type": f"type.googleapis.com/google.api.serviceusage.{call.version}.OperationMetadata",
            "resourceNames": resources or [call.path.get("name", "")],
        }
        return self._operations.longrunning(
            api=call.api,
            parent="",
            metadata=metadata,
            response_type=f"google.api.serviceusage.{call.version}.{response}",
            work=work,
            name=f"operations/acat.p2-{self._world.number}-{uuid.uuid4()}",
        )

    def _service(self, name: str) -> JsonObject:
        parent = f"projects/{self._world.number}"
        title = _TITLES.get(name.partition(".")[0], name)
        return {
            "name": f"{parent}/services/{name}",
            "parent": parent,
            "config": {"name": name, "title": title},
            "state": "ENABLED" if name in self._enabled else "DISABLED",
        }

    def _named(self, full_name: str) -> str:
        """`tpu.googleapis.com` of `projects/P/services/tpu.googleapis.com`."""
        parent, _, name = full_name.partition("/services/")
        self._check_parent(parent)
        self._check_known(name)
        return name

    def _check_parent(self, parent: str) -> None:
        if parent not in (f"projects/{self._world.project}", f"projects/{self._world.number}"):
            raise ApiError(
                403, "PERMISSION_DENIED", f"Permission denied on resource {parent} (or it may not exist)."
            )

    def _check_known(self, name: str) -> None:
        if name not in _known():
            text = f"Not found or permission denied for service(s): {name}."
            raise ApiError(400, "FAILED_PRECONDITION", text)
