"""Cloud Run: services, which count as started and aren't called.

https://cloud.google.com/run/docs/reference/rest/v2/projects.locations.services
"""

from __future__ import annotations

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import acts_as, default_account, every, not_emulated
from rehearsal.cloud.core.errors import bad_request

_DONE = {"type": "Ready", "state": "CONDITION_SUCCEEDED"}
_READY = {"reconciling": False, "terminalCondition": _DONE}
_CREATING = {"reconciling": True, "terminalCondition": {"type": "Ready", "state": "CONDITION_RECONCILING"}}
_ID = "[a-z](?:[-a-z0-9]{0,47}[a-z0-9])?"


def _service(change: Change) -> None:
    """Complete a service: containers with images, an account, a generation, the address."""
    template = change.body["template"]
    containers = template.get("containers") or []
    if (
        not isinstance(containers, list)
        or not containers
        or not all(container.get("image") for container in containers)
    ):
        raise bad_request("Revision template should contain at least one container with an image.")
    if not template.get("serviceAccount"):
        template["serviceAccount"] = default_account(change)
    generation = str(int(change.old.get("generation", 0)) + 1)
    principal = change.call.principal
    change.body |= {"generation": generation, "observedGeneration": generation, "lastModifier": principal}
    change.body.setdefault("creator", principal)
    change.body.setdefault("launchStage", "GA")
    location = change.name.split("/")[3]
    revision = f"{change.name}/revisions/{change.id}-{int(generation):05}"
    change.body |= {
        "latestCreatedRevision": revision,
        "latestReadyRevision": revision,
        "uri": f"https://{change.id}-{change.world.number}.{location}.run.app",
    }


ENTRY = Entry(
    "run",
    ("v2",),
    (
        Collection(
            "run.projects.locations.services",
            shows_deleted=True,
            pattern=_ID,
            seconds=15.0,
            defaults={
                "ingress": "INGRESS_TRAFFIC_ALL",
                "traffic": [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}],
                "template": {"maxInstanceRequestConcurrency": 80, "timeout": "300s"},
            },
            creating=_CREATING,
            ready=_READY,
            references=(acts_as("template.serviceAccount"),),
            check=every(
                not_emulated(
                    "buildConfig", "template.encryptionKey", "template.vpcAccess", "multiRegionSettings"
                ),
                _service,
            ),
        ),
    ),
    package="google.cloud.run.v2",
    metadata="",
)
