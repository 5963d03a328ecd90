"""Cloud Run functions, second generation, which runner.py builds and serves.

Where the cloud has nothing to do that with, they are taken to build and to start, and don't answer.

https://cloud.google.com/functions/docs/reference/rest/v2/projects.locations.functions
"""

from __future__ import annotations

import re
import uuid

from google_facts import builds
from rehearsal.cloud.collections import KEEP, Change, Collection, Entry, Reference
from rehearsal.cloud.collections.checks import NAME, acts_as, default_account, every, not_emulated, topic
from rehearsal.cloud.core.errors import ApiError, bad_request
from rehearsal.cloud.iam.iam import agent, compute_account
from rehearsal.cloud.services.functions.source import copied

# https://cloud.google.com/functions/docs/networking/network-settings#ingress_settings
_INGRESS = {
    "ALLOW_ALL": "INGRESS_TRAFFIC_ALL",
    "ALLOW_INTERNAL_ONLY": "INGRESS_TRAFFIC_INTERNAL_ONLY",
    "ALLOW_INTERNAL_AND_GCLB": "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER",
}
_RUNTIME = re.compile(r"(python3\d{1,2}|nodejs\d{2}|go1\d{2}|java\d{2}|ruby3\d|php8\d|dotnet\d{1,2})")


def _deploys(change: Change) -> None:
    build, service = change.body.get("buildConfig", {}), change.body.setdefault("serviceConfig", {})
    if not _RUNTIME.fullmatch(build.get("runtime", "")):
        raise bad_request(f"The request has errors: runtime '{build.get('runtime', '')}' is not supported.")
    if change.body.setdefault("environment", "GEN_2") != "GEN_2":
        raise bad_request(
            "Creating functions of the 1st generation isn't supported by this version of the API."
        )
    source = build.get("source", {}).get("storageSource", {})
    if not source.get("bucket") or not source.get("object"):
        raise bad_request(
            "The request has errors: build_config.source.storage_source must have bucket and object."
        )
    _, project, _, location, _, short = change.name.split("/")
    host = f"{short}-{change.world.number}.{location}.run.app"
    if not service.get("serviceAccountEmail"):
        service["serviceAccountEmail"] = default_account(change)
    service |= {"service": change.name.replace("/functions/", "/services/"), "uri": f"https://{host}"}
    change.body["url"] = f"https://{location}-{project}.cloudfunctions.net/{short}"
    if not build.get("serviceAccount"):
        build["serviceAccount"] = f"projects/{project}/serviceAccounts/{compute_account(change.world)}"
    own = f"projects/{project}/locations/{location}/repositories/gcf-artifacts"  # which Functions makes
    if build.setdefault("dockerRepository", own) != own:
        change.resources.find(build["dockerRepository"])
    _require_agent(change, build["dockerRepository"])
    if change.old:
        change.finish.append(lambda: _follow_ingress(change))
    change.waits.append(lambda: _build(change))


def _require_agent(change: Change, repository: str) -> None:
    """ApiError 403 as long as Functions' agent, or its role, is too new to see the repository.

    https://github.com/firebase/firebase-tools/issues/5244
    """
    needs = "artifactregistry.repositories.get"
    if not change.resources.iam.allowed(agent(change.world, "cloudfunctions"), needs, repository):
        raise ApiError(
            403,
            "PERMISSION_DENIED",
            f"Unable to retrieve the repository metadata for {repository}. Ensure that the Cloud Functions "
            "service account has 'artifactregistry.repositories.list' and "
            "'artifactregistry.repositories.get' permissions. You can add the permissions by granting the "
            "role 'roles/artifactregistry.reader'.",
        )


async def _build(change: Change) -> None:
    region = change.name.split("/")[3]
    if change.world.limits.get((builds.TITLE, region)) == 0:
        raise ApiError(400, "FAILED_PRECONDITION", builds.REFUSED)
    source = await copied(change)
    if change.runtime.functions is not None:
        await change.runtime.functions.deploy(change.name, change.body, source)


def _follow_ingress(change: Change) -> None:
    config = change.body["serviceConfig"]
    change.world.directory[config["service"]]["ingress"] = _INGRESS[config["ingressSettings"]]


def _service(change: Change) -> None:
    """Create the Run service behind a function, with a policy of its own."""
    body, now = change.body, change.world.clock.rfc3339()
    name = body["serviceConfig"]["service"]
    account = body["serviceConfig"]["serviceAccountEmail"]
    image = f"{body['buildConfig']['dockerRepository']}/{change.id}"
    change.world.directory[name] = {
        "name": name,
        "uid": str(uuid.uuid4()),
        "generation": "1",
        "createTime": now,
        "updateTime": now,
        "creator": change.call.principal,
        "ingress": _INGRESS[body["serviceConfig"]["ingressSettings"]],
        "launchStage": "GA",
        "template": {"serviceAccount": account, "containers": [{"image": image}]},
        "uri": body["serviceConfig"]["uri"],
    }
    change.resources.iam.create(name)


def _gone(change: Change) -> None:
    change.resources.drop(change.old["serviceConfig"]["service"])
    if change.runtime.functions is not None:
        change.runtime.functions.remove(change.name)


def _failed(change: Change, error: ApiError) -> None:
    """Keep a function that couldn't be built, with the reason."""
    if change.runtime.functions is None:
        change.resources.drop(change.name)
        return
    message = {"severity": "ERROR", "type": "CloudRunServiceNotReady", "message": error.message}
    change.world.directory[change.name] |= {"state": "FAILED", "stateMessages": [message]}
    if change.world.directory[change.name]["serviceConfig"]["service"] not in change.world.directory:
        _service(change)


ENTRY = Entry(
    "cloudfunctions",
    ("v2", "v2beta"),
    (
        Collection(
            "cloudfunctions.projects.locations.functions",
            pattern=NAME,
            seconds=90.0,
            # The documentation of ServiceConfig names these.
            defaults={
                "serviceConfig": {
                    "allTrafficOnLatestRevision": True,
                    "availableMemory": "256M",
                    "ingressSettings": "ALLOW_ALL",
                    "maxInstanceCount": 100,
                    "maxInstanceRequestConcurrency": 1,
                    "timeoutSeconds": 60,
                },
            },
            creating={"state": "DEPLOYING"},
            ready={"state": "ACTIVE"},
            ending={"state": "DELETING"},
            references=(
                acts_as("serviceConfig.serviceAccountEmail"),
                acts_as("buildConfig.serviceAccount"),
                acts_as("eventTrigger.serviceAccountEmail"),
                Reference(
                    "buildConfig.source.storageSource.bucket", ("storage.buckets",), on_delete=KEEP,
                    short="projects/_/buckets/{id}",
                ),
                topic("eventTrigger.pubsubTopic"),
            ),
            check=every(
                not_emulated(
                    "kmsKeyName", "eventTrigger.channel", "buildConfig.source.repoSource",
                    "buildConfig.source.gitUri",
                    "buildConfig.workerPool", "serviceConfig.vpcConnector",
                    "serviceConfig.secretVolumes", "serviceConfig.secretEnvironmentVariables",
                    "serviceConfig.directVpcNetworkInterface",
                ),
                _deploys,
            ),
            created=_service,
            failed=_failed,
            deleted=_gone,
        ),
    ),
    package="google.cloud.functions.v2",
)  # fmt: skip
