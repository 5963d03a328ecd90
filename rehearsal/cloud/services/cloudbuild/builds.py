"""Cloud Build: builds of the global region, whose steps run (builder.py); no triggers.

https://cloud.google.com/build/docs/api/reference/rest/v1/projects.builds. Unlike at Google, the operation of
a build is called as that of one in the location `global`.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request

FAILED = ApiError(400, "FAILED_PRECONDITION", "Build failed; check build logs for details")
_KEY = re.compile(r"\$(?:\{(\w+)\}|([A-Z_][A-Z0-9_]*))")
_USER_KEY = re.compile(r"_[A-Z0-9_]{1,99}")
_LOGGING = ("CLOUD_LOGGING_ONLY", "NONE")
_UNFINISHED = ("QUEUED", "WORKING")


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
    if not body.get("steps") or not all(step.get("name") for step in body["steps"]):
        raise bad_request("invalid build: every build has steps, and a step the name of an image")
    body |= {"id": change.id, "projectId": change.world.project, "status": "QUEUED"}
    body["logUrl"] = f"https://console.cloud.google.com/cloud-build/builds/{change.id}"
    body["steps"] = [
        {"id": f"step-{number}", "status": "QUEUED", **step} for number, step in enumerate(body["steps"])
    ]
    _substitute(change)
    change.waits.append(lambda: _run(change))


def _substitute(change: Change) -> None:
    """Replace the keys in steps, images and artifacts; ApiError 400 for an unknown or unused key.

    https://cloud.google.com/build/docs/build-config/substitute-variable-values
    """
    body = change.body
    own = body.get("substitutions", {})
    built_in = {
        "BUILD_ID": change.id,
        "PROJECT_ID": change.world.project,
        "PROJECT_NUMBER": change.world.number,
    }
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        key = match[1] or match[2]
        used.add(key)
        if key not in own and key not in built_in:
            if body.get("options", {}).get("substitutionOption") == "ALLOW_LOOSE":
                return ""
            raise bad_request(
                f"invalid value for 'build.substitutions': key in the template \"{key}\" is not a valid "
                "built-in substitution"
            )
        return str({**own, **built_in}[key])

    def replaced(part: Any) -> Any:
        if isinstance(part, str):
            return "$".join(_KEY.sub(value, text) for text in part.split("$$"))
        if isinstance(part, list):
            return [replaced(item) for item in part]
        return {key: replaced(item) for key, item in part.items()} if isinstance(part, dict) else part

    for field in ("steps", "artifacts", "options"):
        if field in body:
            body[field] = replaced(body[field])
    for key in own:
        if not _USER_KEY.fullmatch(key):
            raise bad_request(f"substitution key {key} does not respect format _[A-Z0-9_]+")
        if key not in used and body.get("options", {}).get("substitutionOption") != "ALLOW_LOOSE":
            raise bad_request(f'key "{key}" in the substitution data is not matched in the template')


async def _run(change: Change) -> None:
    """Run the steps; ApiError unless the build succeeds."""
    build = change.world.directory[change.name]
    change.private["build"] = build
    if change.runtime.run_build is None:
        raise NotEmulatedError("Running a build: this cloud has nothing to run it with")
    if build["status"] == "QUEUED":
        await change.runtime.run_build(build)
    if build["status"] != "SUCCESS":
        raise FAILED


def _ended(change: Change) -> None:
    change.world.directory[change.name] = change.private["build"]


def _cancel(change: Change) -> JsonObject:
    build = change.resources.find(change.name, change.shape)
    if build["status"] not in _UNFINISHED:
        raise ApiError(400, "FAILED_PRECONDITION", "cannot cancel build that is already finished")
    build |= {"status": "CANCELLED", "finishTime": change.world.clock.rfc3339()}
    return build


ENTRY = Entry(
    "cloudbuild",
    ("v1",),
    (
        Collection(
            "cloudbuild.projects.builds",
            permissions={"cancel": "cloudbuild.builds.update"},
            new_id=lambda *_: str(uuid.uuid4()),
            seconds=5.0,  # in the queue
            defaults={"timeout": "600s", "queueTtl": "3600s"},
            references=(acts_as("serviceAccount"),),
            check=every(
                not_emulated(
                    *("source.repoSource", "source.gitSource", "source.connectedRepository"),
                    *(
                        "source.storageSourceManifest",
                        "availableSecrets",
                        "secrets",
                        "images",
                        "dependencies",
                    ),
                    *("logsBucket", "options.pool", "options.defaultLogsBucketBehavior"),
                    *("options.volumes", "options.secretEnv", "options.automapSubstitutions"),
                    *(f"artifacts.{kind}" for kind in ("images", "mavenArtifacts", "npmPackages")),
                    *("artifacts.pythonPackages", "artifacts.goModules", "artifacts.genericArtifacts"),
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
            verbs={"cancel": Verb(_cancel, exists=False)},
        ),
    ),
    package="google.devtools.cloudbuild.v1",
    metadata="BuildOperationMetadata",
    roles={
        "roles/cloudbuild.builds.editor": (
            *("resourcemanager.projects.get", "cloudbuild.builds.create", "cloudbuild.builds.get"),
            *("cloudbuild.builds.list", "cloudbuild.builds.update", "cloudbuild.operations.*"),
        ),
        "roles/cloudbuild.builds.viewer": (
            *("resourcemanager.projects.get", "cloudbuild.builds.get", "cloudbuild.builds.list"),
            *("cloudbuild.operations.get", "cloudbuild.operations.list"),
        ),
    },
)
