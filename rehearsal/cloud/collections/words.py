"""Google's refusals, by kind of API.

Compute: https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-api-errors and what issues of
its clients quote; the others: https://google.aip.dev/193 and the same.
"""

from __future__ import annotations

from rehearsal.cloud.collections.shape import COMPUTE, CONTAINER, Shape
from rehearsal.cloud.core.errors import ApiError, bad_request

_NOT_FOUND = {
    COMPUTE: "The resource '{name}' was not found",
    CONTAINER: "Not found: {name}.",
    "": "Resource '{name}' was not found",
}
_EXISTS = {
    COMPUTE: "The resource '{name}' already exists",
    CONTAINER: "Already exists: {name}.",
    "": "Resource '{name}' already exists",
}


def not_found(shape: Shape | None, name: str) -> ApiError:
    """Return a 404."""
    if shape is None:
        return ApiError(404, "NOT_FOUND", _NOT_FOUND[""].format(name=name))
    words = shape.collection.not_found or _NOT_FOUND[shape.dialect]
    return ApiError(404, "NOT_FOUND", _filled(words, shape, name))


def exists(shape: Shape, name: str) -> ApiError:
    """Return a 409 for a name that is taken."""
    words = shape.collection.exists or _EXISTS[shape.dialect]
    return ApiError(409, "ALREADY_EXISTS", _filled(words, shape, name))


def _filled(words: str, shape: Shape, name: str) -> str:
    last, parent = name.rpartition("/")[2], "/".join(name.split("/")[:-2])
    return words.format(name=name, id=last, kind=shape.kind, parent=parent, local=last.partition("@")[0])


def busy(shape: Shape | None, name: str, operation: str) -> ApiError:
    """Return the error for a resource that an operation is changing."""
    if shape is None or not shape.dialect:
        return ApiError(409, "ABORTED", "unable to queue the operation", reason="aborted")
    if shape.dialect == COMPUTE:
        text = f"The resource '{name}' is not ready"
        return ApiError(400, "FAILED_PRECONDITION", text, reason="resourceNotReady")
    text = f"Cluster is running incompatible operation {operation}."
    return ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")


def in_use(shape: Shape, name: str, user: str) -> ApiError:
    """Return a 400 for a resource that can't be deleted, because another refers to it."""
    if shape.dialect == COMPUTE:
        kind = shape.kind.lower()
        text = f"The {kind} resource '{name}' is already being used by '{user}'"
        return ApiError(400, "FAILED_PRECONDITION", text, reason="resourceInUseByAnotherResource")
    text = f"Resource '{name}' is in use by '{user}' and can't be deleted."
    return ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")


def required(shape: Shape, field: str) -> ApiError:
    """Return a 400 for a missing field."""
    if shape.dialect == COMPUTE:
        text = f"Invalid value for field 'resource.{field}': ''. Required field not specified."
        return ApiError(400, "INVALID_ARGUMENT", text, reason="required")
    return bad_request(f"The request is missing the required field {field}.")


def immutable(shape: Shape, field: str, value: object) -> ApiError:
    """Return a 400 for a field that an update may not change."""
    if shape.dialect == COMPUTE:
        return invalid(f"resource.{field}", value, f"The {field} of a {shape.kind} cannot be changed.")
    return bad_request(f"The field '{field}' is immutable and can't be updated.")


def not_mutable(shape: Shape, path: str, known: tuple[str, ...]) -> ApiError:
    """Return a 400 for a path of an update mask that isn't one of the known ones."""
    if shape.dialect == COMPUTE:
        return bad_request(f"The field '{path}' of a {shape.kind} cannot be updated; {', '.join(known)} can.")
    return bad_request(f"Update mask path '{path}' is not supported; {', '.join(known)} are.")


def invalid(field: str, value: object, why: str) -> ApiError:
    """Return a 400 for one field of a request, in compute's words."""
    text = f"Invalid value for field '{field}': '{value}'. {why}"
    return ApiError(400, "INVALID_ARGUMENT", text, reason="invalid")


def changed_meanwhile() -> ApiError:
    """Return the error for an etag that isn't the resource's."""
    text = "The etag in the request doesn't match the current one. Please retry the whole read-modify-write."
    return ApiError(409, "ABORTED", text, reason="aborted")
