"""Source of Cloud Functions' builds: a bucket of the project and region, into which it copies the source.

The bucket comes with the region's first function. The copy is the service agent's, whose role on the project,
roles/cloudfunctions.serviceAgent, reads every bucket of it; the build reads the copy as the function's build
account: https://cloud.google.com/functions/docs/building. The refusal is as of
https://github.com/hashicorp/terraform-provider-google/issues/20571.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from rehearsal.cloud.collections import Change
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.runtime import OAUTH2, HttpRequest, Reply
from rehearsal.cloud.iam.iam import agent
from rehearsal.cloud.services.functions.instances import failed

_STORAGE = "https://storage.googleapis.com/storage/v1/b"
_TIMEOUT_S = 60.0


async def copied(change: Change) -> str:
    """Copy a function's source to where it is built from; return the copy's gs:// URL.

    ApiError if there is none, or if the build account may not read the copy.
    """
    _, _, _, region, _, short = change.name.split("/")
    bucket, name = f"gcf-v2-sources-{change.world.number}-{region}", f"{short}/function-source.zip"
    if (await _send(change, "GET", f"/{bucket}")).status == 404:
        body = {"name": bucket, "location": region, "iamConfiguration": {"uniformBucketLevelAccess": _ON}}
        _fine(await _send(change, "POST", f"?project={change.world.project}", body))
    build = change.body["buildConfig"]
    source = build["source"]["storageSource"]
    generation = f"?sourceGeneration={source['generation']}" if source.get("generation") else ""
    from_, to = (
        f"{where}/o/{quote(what, safe='')}"
        for where, what in ((source["bucket"], source["object"]), (bucket, name))
    )
    _fine(await _send(change, "POST", f"/{from_}/rewriteTo/b/{to}{generation}", {}))
    account = str(build["serviceAccount"]).rpartition("/")[2]
    copy = f"projects/_/buckets/{bucket}/objects/{name}"
    if not change.resources.iam.holds(account, "storage.objects.get", copy):
        raise failed(
            f"failed to Fetch: failed to download archive gs://{bucket}/{name}: Access to bucket {bucket} "
            f"denied. You must grant Storage Object Viewer permission to {account}. If you are using VPC "
            "Service Controls, you must also grant it access to your service perimeter."
        )
    return f"gs://{bucket}/{name}"


_ON: JsonObject = {"enabled": True}


async def _send(change: Change, method: str, path: str, body: Any = None) -> Reply:
    """Send a request to Cloud Storage as the service agent."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    request = HttpRequest(method, _STORAGE + path, headers, data, OAUTH2, "", _TIMEOUT_S)
    try:
        return await change.runtime.caller.send(request, agent(change.world, "cloudfunctions"))
    except (ConnectionError, TimeoutError, PermissionError) as error:
        raise failed(f"failed to copy the source: {error}") from None


def _fine(reply: Reply) -> None:
    if reply.status >= 300:
        raise failed(f"failed to copy the source: {reply.status} {reply.body.decode(errors='replace')}")
