"""Cloud Build: builds of the global region, whose steps run (builder.py); no triggers.

https://cloud.google.com/build/docs/api/reference/rest/v1/projects.builds. Unlike at Google, the operation of
a build is called as that of one in the location `global`.
"""

from __future__ import annotations

import json
import re
import uuid

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated
from rehearsal.cloud.core.errors import ApiError, NotEmulatedError, bad_request

FAILED = ApiError(400, "FAILED_PRECONDITION", "Build failed; check build logs for details")
_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}")
_LOGGING = ("CLOUD_LOGGING_ONLY", "NONE")


def _check(change: Change) -> None:
    body = change.body
    options = body.get("options", {})
    if not body.get("serviceAccount"):
        raise NotEmulatedError("A build of Cloud Build's own account")
    if options.get("logging") not in _LOGGING:  # other places for logs are refused as not emulated
        raise bad_request(
            "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', "
            "(b) use the REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or "
            "(c) use either CLOUD_LOGGING_ONLY / NONE logging options"
        )
    names = [step.get("id") for step in body.get("steps", ()) if step.get("id")]
    if len(set(names)) < len(names):
        raise bad_request("invalid build: the ids of steps must be unique")
    if not all(_DIGEST.fullmatch(step["name"]) for step in body["steps"]):
        raise NotEmulatedError("An image that isn't named by its digest")
    if "$" in json.dumps(body["steps"]):
        raise NotEmulatedError("Substitutions, and dollar signs, in steps")
    body |= {"id": change.id, "projectId": change.world.project, "status": "QUEUED"}
    body["logUrl"] = f"https://console.cloud.google.com/cloud-build/builds/{change.id}"
    body["steps"] = [
        {"id": f"step-{number}", "status": "QUEUED", **step} for number, step in enumerate(body["steps"])
    ]
    change.waits.append(lambda: _run(change))


async def _run(change: Change) -> None:
    """Run the steps; ApiError unless the build succeeds."""
    build = change.world.directory[change.name]
    change.private["build"] = build
    if change.runtime.run_build is None:
        raise NotEmulatedError("Running a build: this cloud has nothing to run it with")
    await change.runtime.run_build(build)
    if build["status"] != "SUCCESS":
        raise FAILED


def _ended(change: Change) -> None:
    change.world.directory[change.name] = change.private["build"]


ENTRY = Entry(
    "cloudbuild",
    ("v1",),
    (
        Collection(
            "cloudbuild.projects.builds",
            new_id=lambda *_: str(uuid.uuid4()),
            seconds=5.0,  # in the queue
            defaults={"timeout": "600s", "queueTtl": "3600s"},
            references=(acts_as("serviceAccount"),),
            check=every(
                not_emulated(
                    *("source.repoSource", "source.gitSource", "source.connectedRepository"),
                    *("source.storageSourceManifest", "availableSecrets", "secrets", "images"),
                    *("dependencies", "substitutions", "artifacts"),
                    *("logsBucket", "options.pool", "options.defaultLogsBucketBehavior"),
                    *("options.volumes", "options.secretEnv", "options.automapSubstitutions"),
                    *(
                        f"steps.{key}"
                        for key in ("waitFor", "secretEnv", "volumes", "script", "allowFailure")
                    ),
                    *("steps.allowExitCodes", "steps.automapSubstitutions", "steps.timeout"),
                ),
                _check,
            ),
            created=_ended,
            failed=lambda change, _: _ended(change),
        ),
    ),
    package="google.devtools.cloudbuild.v1",
    metadata="BuildOperationMetadata",
)
