"""gcp:projects/iAMCustomRole:IAMCustomRole, whose deletion Google keeps for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.standin import mapping
from rehearsal.standin.errors import StandInError
from rehearsal.standin.lifecycle import Context, Resource
from rehearsal.standin.table import IAM, PROJECT, Field, Kind, Table, Update

_CONTENT = ("title", "description", "stage", "permissions")


class CustomRole(Resource):
    """A project's own role; one of that id that was deleted is undeleted instead of made."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Look for the role, then make it or bring it back."""
        found = self.get(context, planned)
        if found is None:
            content = {"roleId": planned["roleId"], "role": self._content(planned, inputs)}
            self.call(context, "POST", f"projects/{planned['project']}/roles", planned, body=content)
        elif found.get("deleted"):
            self._write(context, planned, inputs, deleted=True)
        else:
            raise StandInError(f"Custom project role {self.id(planned)} already exists and must be imported")

    def patch(
        self,
        context: Context,
        request: Update,
        planned: Mapping[str, Any],
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        changed: set[str],
    ) -> None:
        """Send all of the role, undeleted first where somebody deleted it."""
        found = self.call(context, "GET", self.item(planned), planned)
        self._write(context, planned, inputs, deleted=bool(found.get("deleted")))

    def _write(
        self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any], *, deleted: bool
    ) -> None:
        if deleted:
            self.call(context, "POST", f"{self.item(planned)}:undelete", planned, body={})
        self.call(context, "PATCH", self.item(planned), planned, body=self._content(planned, inputs))

    def _content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        return mapping.body([self.table.field(name) for name in _CONTENT], planned, inputs)


CUSTOM_ROLE = CustomRole(
    Table(
        token="gcp:projects/iAMCustomRole:IAMCustomRole",
        service=IAM,
        collection="projects/{project}/roles",
        item="projects/{project}/roles/{roleId}",
        client_library=True,
        auto_name=False,
        fields=(
            Field("roleId", rest=None, required=True, replaces=True),
            PROJECT,
            Field("title", required=True),
            Field("description"),
            Field(
                "permissions",
                Kind.SET,
                rest="includedPermissions",
                required=True,
                encode=lambda value, _: sorted(value or ()),
            ),
            Field("stage", default="GA"),
            Field("name", output=True),
            Field("deleted", Kind.BOOL, output=True),
        ),
        updates=(Update(_CONTENT),),
    )
)
