"""Waiting for long-running operations, in the forms that Google's APIs use."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rehearsal.providers.gcp.api import Client
from rehearsal.providers.gcp.suppress import basename
from rehearsal.providers.gcp.table import Service
from rehearsal.providers.plugin.errors import OperationError


def is_operation(answer: Any) -> bool:
    """Return True if the answer is an operation instead of the resource."""
    if not isinstance(answer, Mapping):
        return False
    if _is_gke(answer):
        return True
    if "kind" in answer:
        return bool(answer["kind"] == "compute#operation")
    return re.fullmatch(r"(.*/)?operations/[^/]+", str(answer.get("name", ""))) is not None


def _is_gke(answer: Mapping[str, Any]) -> bool:
    """https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.operations"""
    return "operationType" in answer and "kind" not in answer


def wait(
    client: Client,
    service: Service,
    operation: Mapping[str, Any],
    *,
    project: str,
    poll_s: float,
    deadline: float,
) -> Mapping[str, Any]:
    """Poll `operation` until it is done and return it; the first poll is at once, as was recorded.

    Raises OperationError with the operation's code and message if it failed, or if `deadline`
    (monotonic clock) passes.
    """
    path = _path(operation, project)
    # Operations of Service Usage v1 are polled on v1beta1, as by the official provider.
    service = replace(service, version="")
    while True:
        if _is_done(operation):
            _raise_error(operation)
            return operation
        if time.monotonic() > deadline:
            raise OperationError(f"timeout while waiting for operation {operation.get('name')}")
        operation = client.send(service, "GET", path, library=_is_gke(operation), deadline=deadline)
        if not _is_done(operation):
            client.pause(poll_s)


def _path(operation: Mapping[str, Any], project: str) -> str:
    name = str(operation["name"])
    if operation.get("kind") == "compute#operation":
        for part in ("zone", "region"):
            if operation.get(part):
                return f"projects/{project}/{part}s/{basename(operation[part])}/operations/{name}"
        return f"projects/{project}/global/operations/{name}"
    if _is_gke(operation):
        return f"projects/{project}/locations/{operation['location']}/operations/{name}"
    return name


def _is_done(operation: Mapping[str, Any]) -> bool:
    return bool(operation.get("done")) or operation.get("status") == "DONE"


def _raise_error(operation: Mapping[str, Any]) -> None:
    error = operation.get("error")
    if not error:
        return
    if "errors" in error:
        raise OperationError(
            "; ".join(f"{item.get('code')}: {item.get('message')}" for item in error["errors"])
        )
    raise OperationError(f"Error code {error.get('code')}, message: {error.get('message')}")
