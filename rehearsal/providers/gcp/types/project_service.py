"""gcp:projects/service:Service: APIs of a project, enabled together and disabled only on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import NOT_FOUND, Context, Resource
from rehearsal.providers.gcp.suppress import basename
from rehearsal.providers.gcp.table import RESOURCE_MANAGER, SERVICE_USAGE, Update
from rehearsal.providers.plugin.errors import ProviderApiError

_LARGEST_BATCH = 20  # services that one batchEnable takes


class ProjectService(Resource):
    """An API of a project."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Enable the API, together with those that other resources enable at the same time."""
        project = planned["project"]

        def enable(names: list[str]) -> None:
            enabled = self._enabled(context, planned)
            missing = [name for name in dict.fromkeys(names) if name not in enabled]
            for start in range(0, len(missing), _LARGEST_BATCH):
                self._enable(context, planned, missing[start : start + _LARGEST_BATCH])
            if missing:
                self._enabled(context, planned)

        context.batches.join(f"enable {project}", planned["service"], enable)

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the API, or None if it isn't enabled or the project is gone."""
        known = {**prior, **self.parse(id_, context.settings)}
        try:
            context.send(RESOURCE_MANAGER, "GET", f"projects/{known['project']}", library=True)
        except ProviderApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        key = f"services {known['project']}"
        enabled = context.batches.join(key, known["service"], lambda _: self._enabled(context, known))
        return mapping.outputs(self.table, {}, known, id_) if known["service"] in enabled else None

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Disable the API if the program has it so; otherwise it stays, and nothing is sent."""
        if not known.get("disableOnDestroy"):
            return
        content: dict[str, Any] = {
            "checkIfServiceHasUsage": "CHECK" if known.get("checkIfServiceHasUsageOnDestroy") else "SKIP"
        }
        if known.get("disableDependentServices"):
            content["disableDependentServices"] = True
        self.call(context, "POST", f"{self.item(known)}:disable", known, body=content)

    def _enable(self, context: Context, known: Mapping[str, Any], names: list[str]) -> None:
        services = f"projects/{known['project']}/services"
        if len(names) == 1:  # batchEnable refuses a batch of one
            self.call(context, "POST", f"{services}/{names[0]}:enable", known, body={})
        else:
            self.call(context, "POST", f"{services}:batchEnable", known, body={"serviceIds": names})

    def _enabled(self, context: Context, known: Mapping[str, Any]) -> set[str]:
        query = {"fields": "services/name,nextPageToken", "filter": "state:ENABLED", "pageSize": "200"}
        services: set[str] = set()
        while True:
            page = self.call(context, "GET", f"projects/{known['project']}/services", known, query=query)
            services |= {basename(item["name"]) for item in page.get("services", ())}
            if not page.get("nextPageToken"):
                return services
            query = {**query, "pageToken": page["nextPageToken"]}


PROJECT_SERVICE = ProjectService(
    "gcp:projects/service:Service",
    SERVICE_USAGE,
    "projects/{project}/services/{service}",
    (Update(""),),
    {"disableOnDestroy disableDependentServices checkIfServiceHasUsageOnDestroy": "local"},
    id="{project}/{service}",
    client_library=True,
)
