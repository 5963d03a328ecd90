"""Look-ups that programs make without a resource: `gcp.storage.get_bucket` and its like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.providers.gcp.lifecycle import Context, Resource
from rehearsal.providers.gcp.table import STORAGE
from rehearsal.providers.gcp.types.bucket import BUCKET
from rehearsal.providers.gcp.types.bucket_object import BUCKET_OBJECT
from rehearsal.providers.plugin.errors import StandInError, UnsupportedError

Invoke = Callable[[Context, Mapping[str, Any]], dict[str, Any]]


_BLOCKS = {
    "autoclass": "autoclasses",
    "encryption": "encryptions",
    "hierarchicalNamespace": "hierarchicalNamespaces",
    "retentionPolicy": "retentionPolicies",
    "softDeletePolicy": "softDeletePolicies",
    "versioning": "versionings",
}
"""Blocks of the resource that the look-up gives as lists."""


def _only(function: str, arguments: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Return the given arguments; an unknown argument is refused by name."""
    given = {key: value for key, value in arguments.items() if value is not None}
    if unknown := sorted(set(given) - set(known)):
        raise UnsupportedError(f"the stand-in doesn't know the argument {unknown[0]!r} of {function}")
    return given


def _read(resource: Resource, context: Context, known: Mapping[str, Any]) -> dict[str, Any]:
    id_ = resource.id(known)
    outputs = resource.read(context, id_, known)
    if outputs is None:
        message = f"The resource {id_!r} was not found, notFound"
        raise StandInError(f"Error reading {resource.label}: googleapi: Error 404: {message}")
    return outputs


def _get_bucket(context: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = _only("getBucket", arguments, ("name", "project"))
    # With a project the provider sends Compute Engine no request for it.
    outputs = _read(BUCKET, context, {**given, "id": given["name"]} if "project" in given else given)
    listed = {plural: [outputs[key]] if outputs.get(key) else [] for key, plural in _BLOCKS.items()}
    return {**{key: value for key, value in outputs.items() if key not in _BLOCKS}, **listed}


def _get_buckets(context: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = _only("getBuckets", arguments, ("prefix", "project"))
    query = {"project": context.settings.project, **given}
    items: list[dict[str, Any]] = []
    while True:
        page = context.send(STORAGE, "GET", "b", query=query)
        items += page.get("items") or ()
        if not page.get("nextPageToken"):
            break
        query["pageToken"] = page["nextPageToken"]
    shown = ("labels", "location", "name", "selfLink", "storageClass")
    buckets = [{key: item.get(key) for key in shown} for item in items]
    return {**given, "id": query["project"], "project": query["project"], "buckets": buckets}


def _get_bucket_object(context: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = _only("getBucketObject", arguments, ("bucket", "name"))
    outputs = _read(BUCKET_OBJECT, context, given)
    return {key: value for key, value in outputs.items() if key not in ("source", "outputName")}


def _get_project_service_account(context: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = _only("getProjectServiceAccount", arguments, ("project",))
    project = given.get("project") or context.settings.project
    email = context.send(STORAGE, "GET", f"projects/{project}/serviceAccount", library=True)["email_address"]
    return {
        "id": email,
        "emailAddress": email,
        "member": f"serviceAccount:{email}",
        "project": project,
    }


INVOKES: dict[str, Invoke] = {
    "gcp:storage/getProjectServiceAccount:getProjectServiceAccount": _get_project_service_account,
    "gcp:storage/getBucket:getBucket": _get_bucket,
    "gcp:storage/getBuckets:getBuckets": _get_buckets,
    "gcp:storage/getBucketObject:getBucketObject": _get_bucket_object,
}
