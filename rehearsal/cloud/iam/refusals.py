"""Refusals of access, in the words of each API."""

from __future__ import annotations

from rehearsal.cloud.core.errors import ApiError, JsonObject


def denied(principal: str, permission: str, resource: str) -> ApiError:
    """Return the 403 that the permission's API answers."""
    service = permission.split(".", 1)[0]
    if service == "compute":
        return ApiError(403, "PERMISSION_DENIED", f"Required '{permission}' permission for '{resource}'")
    if service == "storage":
        kind = "object" if "/objects/" in resource else "bucket"
        text = (
            f"{principal} does not have {permission} access to the Google Cloud Storage {kind}. "
            f"Permission '{permission}' denied on resource (or it may not exist)."
        )
        return ApiError(403, "PERMISSION_DENIED", text)
    host = {"resourcemanager": "cloudresourcemanager"}.get(service, service) + ".googleapis.com"
    info: JsonObject = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "IAM_PERMISSION_DENIED",
        "domain": host,
        "metadata": {"permission": permission, "resource": resource},
    }
    text = f"Permission '{permission}' denied on resource '//{host}/{resource}' (or it may not exist)."
    return ApiError(403, "PERMISSION_DENIED", text, details=[info])
