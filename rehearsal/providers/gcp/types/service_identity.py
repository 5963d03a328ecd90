"""gcp:projects/serviceIdentity:ServiceIdentity: a service's agent, which Google makes and never deletes.

Not recorded; as in the provider's source (google-beta/services/resourcemanager of
https://github.com/hashicorp/terraform-provider-google-beta): one request, no reading, and no deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp.lifecycle import Context, Resource
from rehearsal.providers.gcp.table import Service

SERVICE_IDENTITIES = Service("serviceusage")


class ServiceIdentity(Resource):
    """The agent of one service in a project."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Let Google make it."""
        return self.call(context, "POST", f"{self.item(planned)}:generateServiceIdentity", planned)

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to its creation: the API has no read method."""
        return {"email": known.get("email") or ""}

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """With the agent as policies write it."""
        outputs = super().read(context, id_, prior) or {}
        email = outputs.get("email")
        return {**outputs, "member": f"serviceAccount:{email}" if email else ""}

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Forget it."""


SERVICE_IDENTITY = ServiceIdentity(
    "gcp:projects/serviceIdentity:ServiceIdentity",
    SERVICE_IDENTITIES,
    "projects/{project}/services/{service}",
    (),
    {"service": "nameless", "member": "local"},
    schema="ServiceIdentity",
    assigned={"email": "email"},
)
