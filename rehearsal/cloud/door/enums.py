"""Enums by number, as google-cloud-python's clients send them (`$alt=json;enum-encoding=int`).

The documents have names only. They stand in the order of their numbers, counted from 0, but where one was
retired or stands out of order: those are listed here, and a test compares all with the clients' own messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.door import discovery

# (API, field) → the numbers of its enum's values, in the document's order; `-` for one that no client knows.
NUMBERS = {
    ("artifactregistry", "ProjectSettings.legacyRedirectionState"): "0 1 2 3 5 6",
    ("artifactregistry", "Repository.format"): "0 1 2 3 5 6 - 8 9 10 11 12 -",
    ("container", "AdvancedDatapathObservabilityConfig.relayMode"): "0 1 3 4",
    ("container", "ClusterUpgradeInfo.autoUpgradeStatus"): "0 1 4 5",
    ("container", "ClusterUpgradeInfo.pausedReason"): "0 1 5 6 4 7 8",
    ("container", "DataplaneV2Config.scalabilityMode"): "0 3 4",
    ("container", "GPUDirectConfig.gpuDirectStrategy"): "0 2",
    ("container", "GatewayAPIConfig.channel"): "0 1 3 4",
    ("container", "LoggingComponentConfig.enableComponents"): "0 1 2 3 4 5 7 8 9 10",
    ("container", "MonitoringComponentConfig.enableComponents"): "0 1 3 4 5 7 8 9 10 11 12 13 14 15 16",
    ("container", "StatusCondition.canonicalCode"): "0 1 2 3 4 5 6 7 16 8 9 10 11 12 13 14 15",
    ("container", "StatusCondition.code"): "0 1 2 3 4 7 9 10 11",
    ("container", "UpgradeSettings.strategy"): "0 2 3 5",
    ("dataproc", "AutotuningConfig.scenarios"): "0 2 3 4 5 6",
    ("dataproc", "SoftwareConfig.optionalComponents"): "0 - 5 20 13 9 14 11 3 18 19 1 21 6 17 12 10 4 8 22",
    ("eventarc", "StateCondition.code"): "0 1 2 3 4 5 6 7 16 8 9 10 11 12 13 14 15",
    ("monitoring", "Aggregation.crossSeriesReducer"): "0 1 2 3 4 5 6 7 15 8 9 10 11 12",
    ("monitoring", "Aggregation.perSeriesAligner"): "0 1 2 3 4 10 11 12 13 14 15 16 24 17 18 19 20 21 23",
    ("monitoring", "Threshold.color"): "0 4 6",
    ("run", "GoogleCloudRunV2Execution.launchStage"): "0 6 7 1 2 3 4 5",
    ("run", "GoogleCloudRunV2Instance.launchStage"): "0 6 7 1 2 3 4 5",
    ("run", "GoogleCloudRunV2Job.launchStage"): "0 6 7 1 2 3 4 5",
    ("run", "GoogleCloudRunV2Revision.launchStage"): "0 6 7 1 2 3 4 5",
    ("run", "GoogleCloudRunV2Service.launchStage"): "0 6 7 1 2 3 4 5",
    ("run", "GoogleCloudRunV2SubmitBuildRequest.releaseTrack"): "0 6 7 1 2 3 4 5",
    ("run", "GoogleCloudRunV2WorkerPool.launchStage"): "0 6 7 1 2 3 4 5",
    ("secretmanager", "Secret.secretType"): "0 1 2 3 4 50",
    ("tpu", "AcceleratorConfig.type"): "0 2 4 7 9 10 11",
    ("tpu", "Node.health"): "0 1 3 4 5",
}


def by_name(api: str, version: str, method_id: str, body: JsonObject) -> JsonObject:
    """Convert a request's enums to names. An unknown number stays, for the schema to refuse."""
    document = discovery.document(api, version)
    schema = document.methods[method_id]["request"]
    return dict(_named(api, document.definitions, schema, "", body))


def _named(api: str, schemas: Mapping[str, JsonObject], schema: JsonObject, field: str, value: Any) -> Any:
    """`field` is the one that has the value: `Repository.format`."""
    name = schema.get("$ref", "")
    schema = schemas.get(name, schema)
    if isinstance(value, list):
        return [_named(api, schemas, schema.get("items", {}), field, item) for item in value]
    if isinstance(value, dict):
        known, default = schema.get("properties", {}), schema.get("additionalProperties", {})
        return {
            key: _named(api, schemas, known.get(key, default), f"{name}.{key}", item)
            for key, item in value.items()
        }
    if "enum" not in schema or type(value) is not int:
        return value
    numbers = NUMBERS.get((api, field), " ".join(map(str, range(len(schema["enum"]))))).split()
    return schema["enum"][numbers.index(str(value))] if str(value) in numbers else value
