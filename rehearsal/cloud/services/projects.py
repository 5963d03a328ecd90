"""Resource Manager: the one project, in v1's form and in v3's."""

from __future__ import annotations

from collections.abc import Mapping

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.service import Call, Method
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.iam.policies import policy_methods


class ProjectService:
    """The cloudresourcemanager API."""

    api = "cloudresourcemanager"
    versions = ("v1", "v3")

    def __init__(self, world: World, iam: Iam) -> None:
        self._world = world
        self._iam = iam
        self._created = world.clock.rfc3339()

    def methods(self) -> Mapping[str, Method]:
        """By method id; v1 and v3 share them."""
        return {
            "cloudresourcemanager.projects.get": Method(
                self._get, "resourcemanager.projects.get", self._resource
            ),
            **policy_methods(
                self._iam,
                "cloudresourcemanager.projects",
                "resourcemanager.projects",
                self._resource,
                self._require,
            ),
        }

    def _resource(self, call: Call) -> str:
        project = call.path.get("projectId") or call.path.get("name") or call.path["resource"]
        project = project.removeprefix("projects/")
        return f"projects/{self._world.project if project == self._world.number else project}"

    def _require(self, resource: str) -> None:
        if resource != f"projects/{self._world.project}":
            text = f"The caller does not have permission on {resource} (or it may not exist)."
            raise ApiError(403, "PERMISSION_DENIED", text)

    async def _get(self, call: Call) -> JsonObject:
        self._require(self._resource(call))
        return self._body(call)

    def _body(self, call: Call) -> JsonObject:
        if call.version == "v1":
            return {
                "projectNumber": self._world.number,
                "projectId": self._world.project,
                "lifecycleState": "ACTIVE",
                "name": self._world.project,
                "createTime": self._created,
            }
        return {
            "name": f"projects/{self._world.number}",
            "projectId": self._world.project,
            "state": "ACTIVE",
            "displayName": self._world.project,
            "createTime": self._created,
        }
