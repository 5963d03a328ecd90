"""Types with bodies or requests of their own: log buckets, dashboards, budgets, tables, secrets' versions."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import Change, Context, Resource
from rehearsal.providers.gcp.table import COMPUTE, Service, Update, basename
from rehearsal.providers.gcp.types.services import LOGGING, SECRET_MANAGER

BIG_QUERY = Service("BIG_QUERY", "https://bigquery.googleapis.com/bigquery/v2/")
BUDGETS = Service("BILLING", "https://billingbudgets.googleapis.com/v1/")
CLOUD_BUILD = Service("CLOUD_BUILD", "https://cloudbuild.googleapis.com/v1/")
DASHBOARDS = Service("MONITORING", "https://monitoring.googleapis.com/", "monitoring.v1")


class LogBucket(Resource):
    """A bucket of logs; one that is there already, as `_Default` always is, is taken over and left behind."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Make the bucket, or bring the one that is there to what was asked for."""
        if self.get(context, planned) is None:
            content = {**self.content(planned, inputs), "locked": bool(planned.get("locked")), "name": ""}
            path = f"{self.item(planned).rpartition('/')[0]}:createAsync"
            query = {"bucketId": planned["bucketId"]}
            self.call(context, "POST", path, planned, body=content, query=query)
            return
        names = ("retentionDays", "description", "locked", "cmekSettings", "indexConfigs")
        mask = ",".join(name for name in names if inputs.get(name) is not None)
        content = mapping.body(self.table.sent(self.table.updates[0]), planned, inputs, update=True)
        self.call(context, "PATCH", self.item(planned), planned, body=content, query={"updateMask": mask})

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Delete the bucket, but for those that every project has."""
        if not str(known["bucketId"]).startswith("_"):
            super().remove(context, known)


LOG_BUCKET = LogBucket(
    "gcp:logging/projectBucketConfig:ProjectBucketConfig",
    LOGGING,
    "projects/{project}/locations/{location}/buckets/{bucketId}",
    (
        Update("cmekSettings description indexConfigs retentionDays", mask="updateMask"),
        Update("enableAnalytics", mask="updateMask"),
        Update("locked", mask="updateMask"),
    ),
    {
        "cmekSettings description indexConfigs": "always",
        "enableAnalytics": "at=analyticsEnabled",
        "deletionPolicy": "refused",
    },
)


def _same_dashboard(wanted: str, current: str) -> bool:
    """Whether two texts describe one dashboard, whatever Google wrote into the second."""
    return {**json.loads(current), "etag": "", "name": ""} == {**json.loads(wanted), "etag": "", "name": ""}


class Dashboard(Resource):
    """A dashboard, which is one JSON text."""

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The dashboard itself."""
        found: dict[str, Any] = json.loads(planned["dashboardJson"])
        return found

    def written(self, context: Context, request: Update, change: Change) -> dict[str, Any]:
        """The dashboard with the etag of before."""
        etag = json.loads(change.state["dashboardJson"])["etag"]
        return {**self.content(change.planned, change.inputs), "etag": etag}

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The dashboard as one text."""
        rest = super().get(context, known)
        return rest and {"dashboardJson": json.dumps(rest, sort_keys=True, separators=(",", ":"))}


DASHBOARD = Dashboard(
    "gcp:monitoring/dashboard:Dashboard",
    DASHBOARDS,
    "v1/{name}",
    (Update("dashboardJson"),),
    {"dashboardJson": {"is": "at=dashboardJson", "same": _same_dashboard}},
    id="{name}",
    collection="v1/projects/{project}/dashboards",
    assigned={"name": "name"},
)

_RULE = "notificationsRule"
_RULES = ("pubsubTopic", "schemaVersion", "monitoringNotificationChannels", "disableDefaultIamRecipients")

BUDGET = Resource(
    "gcp:billing/budget:Budget",
    BUDGETS,
    "{name}",
    (Update(mask="updateMask"),),
    {
        "name": {"decode": basename},
        "billingAccount": "local fixed",
        "allUpdatesRule": {"is": f"at={_RULE}", "mask": ",".join(f"{_RULE}.{one}" for one in _RULES)},
        "amount": {
            "mask": ",".join(f"amount.specifiedAmount.{x}" for x in ("currencyCode", "units", "nanos"))
        },
        "amount.lastPeriodAmount": {"encode": lambda *_: {}, "decode": lambda raw: raw is not None},
        "budgetFilter.calendarPeriod": {  # MONTH is Google's default, and isn't sent
            "encode": lambda period, _: mapping.OMITTED if period == "MONTH" else period,
            "same": lambda wanted, current: wanted == (current or "MONTH"),
        },
        "budgetFilter.labels": {
            "encode": lambda labels, _: {key: [value] for key, value in labels.items()},
            "decode": lambda raw: raw and {key: values[0] for key, values in raw.items()},
        },
        "budgetFilter.projects budgetFilter.services": "set",
    },
    collection="billingAccounts/{billingAccount}/budgets",
    assigned={"name": "name"},
    schema="GoogleCloudBillingBudgetsV1Budget",
)

DATASET = Resource(
    "gcp:bigquery/dataset:Dataset",
    BIG_QUERY,
    "projects/{project}/datasets/{datasetId}",
    (Update(method="PUT", whole=True, query={"accessPolicyVersion": "3"}),),
    {
        "datasetId": "at=datasetReference.datasetId",
        "location": "fixed",
        "accesses": "own",
        "defaultCollation friendlyName": "updated",
        "deleteContentsOnDestroy": "local default=false",
    },
    create_query={"accessPolicyVersion": "3"},
    read_query={"accessPolicyVersion": "3"},
    delete_query={"deleteContents": "{deleteContentsOnDestroy}"},
)


def _columns(text: str) -> list[Any]:
    return [{"policyTags": {"names": []}, **column} for column in json.loads(text)]


class BigQueryTable(Resource):
    """A table, which is read before it is written anew."""

    def written(self, context: Context, request: Update, change: Change) -> dict[str, Any]:
        """All of it."""
        self.get(context, change.planned)
        return super().written(context, request, change)


TABLE = BigQueryTable(
    "gcp:bigquery/table:Table",
    BIG_QUERY,
    "projects/{project}/datasets/{datasetId}/tables/{tableId}",
    (Update(method="PUT", whole=True),),
    {
        "project": "at=tableReference.projectId",
        "datasetId": "at=tableReference.datasetId",
        "tableId": "at=tableReference.tableId",
        "schema": {
            "encode": lambda text, _: {"fields": _columns(text)},
            "decode": lambda raw: raw and json.dumps(raw["fields"], sort_keys=True, separators=(",", ":")),
            "same": lambda wanted, current: bool(current) and _columns(wanted) == _columns(current),
        },
        "timePartitioning": {"encode": lambda block, _: {"requirePartitionFilter": False, **block}},
        "deletionProtection": "local default=true",
    },
)


class Trigger(Resource):
    """A build's trigger; one that is everywhere has no location in its id."""

    def id(self, planned: Mapping[str, Any]) -> str:
        """The trigger's id in Pulumi's state."""
        return super().id(planned).replace("/locations/global/", "/")

    def parse(self, id_: str, settings: Any) -> dict[str, str]:
        """Project, location and trigger."""
        return super().parse(
            id_ if "/locations/" in id_ else id_.replace("/triggers/", "/locations/global/triggers/"),
            settings,
        )


TRIGGER = Trigger(
    "gcp:cloudbuild/trigger:Trigger",
    CLOUD_BUILD,
    "projects/{project}/locations/{location}/triggers/{triggerId}",
    (Update(extra={"id": "{triggerId}"}),),
    {
        "location": "nameless default=global",
        "triggerId": "at=id",
        "approvalConfig": {"decode": lambda raw: raw or {}},
        "*.dynamicSubstitutions": "always",
    },
    assigned={"triggerId": "id"},
)


class MetadataItem(Resource):
    """One entry of the project's metadata, which is read, changed and written back whole."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Add the entry."""
        self._write(context, planned, [{"key": planned["key"], "value": planned["value"]}])

    def patch(self, context: Context, request: Update, change: Change) -> None:
        """Exchange the entry."""
        self.insert(context, change.planned, change.inputs)

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Take the entry out."""
        self._write(context, known, [])

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The entry, of all that the project has."""
        items = self._metadata(context, known).get("items") or ()
        return next((item for item in items if item["key"] == known["key"]), None)

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was sent: it isn't read again."""
        return mapping.outputs(self.table, planned, planned, id_)

    after_update = after_create

    def _metadata(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any]:
        return (super().get(context, known) or {}).get("commonInstanceMetadata") or {}

    def _write(
        self, context: Context, known: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
    ) -> None:
        with context.batches.lock(f"metadata {known['project']}"):
            found = self._metadata(context, known)
            items = [item for item in found.get("items") or () if item["key"] != known["key"]]
            content = {"fingerprint": found.get("fingerprint"), "items": [*items, *entries]}
            path = f"{self.item(known)}/setCommonInstanceMetadata"
            self.call(context, "POST", path, known, body=content)


METADATA_ITEM = MetadataItem(
    "gcp:compute/projectMetadataItem:ProjectMetadataItem",
    COMPUTE,
    "projects/{project}",
    (Update("value"),),
    {"key": "at=key fixed", "value": "at=value"},
    id="{key}",
)


class SecretVersion(Resource):
    """A version of a secret: added, then enabled; destroying it leaves its number behind."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Add the version, then say whether it can be read."""
        data = str(planned["secretData"])
        encoded = data if planned.get("isSecretDataBase64") else base64.b64encode(data.encode()).decode()
        content = {"payload": {"data": encoded}}
        made = self.call(context, "POST", f"{planned['secret']}:addVersion", planned, body=content)
        self._enable(context, {**planned, **made}, planned)
        return made

    def patch(self, context: Context, request: Update, change: Change) -> None:
        """Enable or disable the version."""
        self._enable(context, change.planned, change.planned)

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Destroy the version, or disable it where the program says so."""
        verb = "disable" if known.get("deletionPolicy") == "DISABLE" else "destroy"
        self.call(context, "POST", f"{self.item(known)}:{verb}", known)

    def _enable(self, context: Context, known: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
        verb = "disable" if planned.get("enabled") is False else "enable"
        self.call(context, "POST", f"{self.item(known)}:{verb}", known)


SECRET_VERSION = SecretVersion(
    "gcp:secretmanager/secretVersion:SecretVersion",
    SECRET_MANAGER,
    "{name}",
    (Update("enabled"),),
    {
        "name": {"decode": None},
        "project": "at=project output",  # which isn't there: null, as recorded
        "enabled": {"is": "at=state default=true", "decode": lambda state: state == "ENABLED"},
        "secret secretData isSecretDataBase64": "local fixed",
        "version": {"is": "at=name", "decode": basename},
        "deletionPolicy": {"one_of": ("DELETE", "ABANDON", "DISABLE")},
    },
    assigned={"name": "name"},
    schema="SecretVersion",
)
