"""gcp:serviceaccount/account:Account and gcp:projects/iAMCustomRole:IAMCustomRole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.field import Field
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import IAM, Update
from rehearsal.providers.plugin.errors import StandInError


class Account(Resource):
    """A service account."""

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Add the account's address, which follows from its id and project."""
        email = f"{planned['accountId']}@{planned['project']}.iam.gserviceaccount.com"
        return {**planned, "email": email}

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Make the account; its description stands in a wrapper."""
        content = {
            "accountId": planned["accountId"],
            "serviceAccount": mapping.body(self._described, planned, inputs),
        }
        self.call(context, "POST", f"projects/{planned['project']}/serviceAccounts", planned, body=content)

    def after_update(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Look until the change shows, as after the creation."""
        return self.after_create(context, id_, planned)

    @property
    def _described(self) -> list[Field]:
        return self.table.sent(self.table.updates[0])

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send the description with the account's etag; the mask names what changed."""
        etag = self.call(context, "GET", self.item(change.planned), change.planned)["etag"]
        described = mapping.body(self._described, change.planned, change.inputs, update=True)
        mask = ",".join(sorted(f.snake for f in self._described if f.name in change.changed))
        content = {"serviceAccount": {**described, "etag": etag}, "updateMask": mask}
        self.call(context, "PATCH", self.item(change.planned), change.planned, body=content)

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the account with its name as a member of policies."""
        outputs = super().read(context, id_, prior)
        return None if outputs is None else {**outputs, "member": f"serviceAccount:{outputs['email']}"}

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """Also the account's short id, which is the front of its address."""
        parts = super().parse(id_, settings)
        return {**parts, "accountId": parts["email"].partition("@")[0]}


ACCOUNT = Account(
    "gcp:serviceaccount/account:Account",
    IAM,
    "projects/{project}/serviceAccounts/{email}",
    (Update("displayName description"),),
    {"accountId": "local", "createIgnoreAlreadyExists": "local only=false", "member": "local"},
    client_library=True,
    looks=2,  # a new account takes a moment to show everywhere
)


class CustomRole(Resource):
    """A project's own role; one of that id that was deleted is undeleted instead of made."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Look for the role, then make it or bring it back."""
        account = self.get(context, planned)
        if account is None:
            content = {"roleId": planned["roleId"], "role": self._content(planned, inputs)}
            self.call(context, "POST", f"projects/{planned['project']}/roles", planned, body=content)
        elif account.get("deleted"):
            self._write(context, planned, inputs, deleted=True)
        else:
            raise StandInError(f"Custom project role {self.id(planned)} already exists and must be imported")

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send all of the role, undeleted first where somebody deleted it."""
        account = self.call(context, "GET", self.item(change.planned), change.planned)
        self._write(context, change.planned, change.inputs, deleted=bool(account.get("deleted")))

    def after_update(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the sent values: the role isn't read again."""
        return mapping.outputs(self.table, {**self._content(planned, planned), "name": id_}, planned, id_)

    def _write(
        self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any], *, deleted: bool
    ) -> None:
        if deleted:
            self.call(context, "POST", f"{self.item(planned)}:undelete", planned, body={})
        self.call(context, "PATCH", self.item(planned), planned, body=self._content(planned, inputs))

    def _content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        return mapping.body(self.table.sent(self.table.updates[0]), planned, inputs)


CUSTOM_ROLE = CustomRole(
    "gcp:projects/iAMCustomRole:IAMCustomRole",
    IAM,
    "projects/{project}/roles/{roleId}",
    (Update("title description stage permissions"),),
    {
        "permissions": {"is": "at=includedPermissions", "encode": lambda value, _: sorted(value or ())},
    },
    client_library=True,
)
