"""gcp:serviceaccount/account:Account."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rehearsal.standin import mapping
from rehearsal.standin.errors import ApiError
from rehearsal.standin.lifecycle import Context, Resource
from rehearsal.standin.settings import Settings
from rehearsal.standin.table import DELETION_POLICY, IAM, PROJECT, Field, Kind, Table, Update

_DESCRIPTIVE = (Field("displayName"), Field("description"))
_NOT_YET = (403, 404)
_LOOKS = 2  # before the read that counts: a new account takes a moment to show everywhere


class Account(Resource):
    """A service account."""

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """The account's address follows from its id and project."""
        email = f"{planned['accountId']}@{planned['project']}.iam.gserviceaccount.com"
        return {**planned, "email": email}

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Make the account; its description stands in a wrapper."""
        content = {
            "accountId": planned["accountId"],
            "serviceAccount": mapping.body(_DESCRIPTIVE, planned, inputs),
        }
        self.call(context, "POST", f"projects/{planned['project']}/serviceAccounts", planned, body=content)

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Look until the account shows, then read it; until then Google answers 404, or 403."""
        seen = 0
        while seen < _LOOKS:
            try:
                self.call(context, "GET", self.item(planned), planned)
                seen += 1
            except ApiError as error:
                if error.status not in _NOT_YET or time.monotonic() > context.deadline:
                    raise
            context.client.pause(context.poll_s)
        return self.read(context, id_, planned)

    after_update = after_create

    def patch(
        self,
        context: Context,
        request: Update,
        planned: Mapping[str, Any],
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        changed: set[str],
    ) -> None:
        """Send the description with the account's etag; the mask names what changed."""
        etag = self.call(context, "GET", self.item(planned), planned)["etag"]
        described = mapping.body(_DESCRIPTIVE, planned, inputs, update=True)
        mask = ",".join(sorted(f.snake for f in _DESCRIPTIVE if f.name in changed))
        content = {"serviceAccount": {**described, "etag": etag}, "updateMask": mask}
        self.call(context, "PATCH", self.item(planned), planned, body=content)

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """The account, and how it is called as a member of policies."""
        outputs = super().read(context, id_, prior)
        return None if outputs is None else {**outputs, "member": f"serviceAccount:{outputs['email']}"}

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """Also the account's short id, which is the front of its address."""
        found = super().parse(id_, settings)
        return {**found, "accountId": found["email"].partition("@")[0]}


ACCOUNT = Account(
    Table(
        token="gcp:serviceaccount/account:Account",
        service=IAM,
        collection="projects/{project}/serviceAccounts",
        item="projects/{project}/serviceAccounts/{email}",
        client_library=True,
        auto_name=False,
        fields=(
            Field("accountId", rest=None, required=True, replaces=True),
            PROJECT,
            DELETION_POLICY,
            *_DESCRIPTIVE,
            Field("createIgnoreAlreadyExists", Kind.BOOL, rest=None, only=False),
            Field("email", output=True),
            Field("member", rest=None, output=True),
            Field("name", output=True),
            Field("uniqueId", output=True),
            Field("disabled", Kind.BOOL, output=True),
        ),
        updates=(Update(("displayName", "description")),),
    )
)
