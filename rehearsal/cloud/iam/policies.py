"""getIamPolicy, setIamPolicy and testIamPermissions, which most APIs have in the same form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rehearsal.cloud.core.errors import JsonObject, bad_request
from rehearsal.cloud.core.service import Call, Method
from rehearsal.cloud.iam.iam import Iam

_DEFAULT_MASK = "bindings,etag"


def requested_version(call: Call) -> int:
    """Return the requested version of a policy, in the query or the body; 0 if none."""
    options = (call.body or {}).get("options") or {}
    versions = (
        call.query.get(key) for key in ("options.requestedPolicyVersion", "optionsRequestedPolicyVersion")
    )
    return int(next(filter(None, versions), None) or options.get("requestedPolicyVersion") or 0)


def policy_methods(
    iam: Iam,
    collection: str,
    permissions: str,
    resource: Callable[[Call], str],
    exists: Callable[[str], object],
) -> Mapping[str, Method]:
    """Return the three methods of a collection (`iam.projects.serviceAccounts`).

    `permissions` is what their permissions begin with (`iam.serviceAccounts`); `exists` raises ApiError
    404 for a resource that isn't there.
    """

    async def get(call: Call) -> JsonObject:
        exists(resource(call))
        return iam.shown(resource(call), requested_version(call))

    async def set_(call: Call) -> JsonObject:
        exists(resource(call))
        sent = call.body or {}
        policy: JsonObject = sent.get("policy") or {}
        mask = {path.strip() for path in (sent.get("updateMask") or _DEFAULT_MASK).split(",")}
        if unknown := mask - {"bindings", "etag", "auditConfigs", "version"}:
            raise bad_request(f"Invalid update mask: {', '.join(sorted(unknown))}.")
        changed = iam.policy(resource(call)) | {"etag": policy.get("etag", "")}
        for key in mask - {"etag"}:
            changed[key] = policy.get(key)
        changed["version"] = policy.get("version", changed["version"])
        iam.require_grants(
            call.principal, f"{permissions}.setIamPolicy", resource(call), iam.policy(resource(call)), changed
        )
        return iam.set_policy(resource(call), changed)

    async def test(call: Call) -> JsonObject:
        exists(resource(call))
        held = iam.test(call.principal, (call.body or {}).get("permissions", ()), resource(call))
        return {"permissions": held} if held else {}

    return {
        f"{collection}.getIamPolicy": Method(get, f"{permissions}.getIamPolicy", resource),
        f"{collection}.setIamPolicy": Method(set_, f"{permissions}.setIamPolicy", resource),
        f"{collection}.testIamPermissions": Method(test),
    }
