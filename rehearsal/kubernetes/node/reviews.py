"""The API server's reviews by Google: the account of a token, and IAM's decision about a request of it.

Webhooks of https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication
and https://kubernetes.io/docs/reference/access-authn-authz/webhook/. At Google, the front end of the DNS
endpoint requires `container.clusters.connect`; here the second webhook does, before anything else.
"""

from __future__ import annotations

from typing import Any

from rehearsal.cloud.control import Control
from rehearsal.errors import RehearsalError
from rehearsal.kubernetes.node.answering import JsonServer


class Reviews(JsonServer):
    """A server at `url` that passes the questions of one cluster's API server on to the cloud."""

    def __init__(self, control: Control, cluster: str):
        """`cluster`: its full name."""
        super().__init__(self._review)
        self._control, self._cluster = control, cluster
        self.url = f"http://{self.place}"

    def _review(self, path: str, review: Any) -> tuple[int, Any]:
        try:
            status = (self.token if path.startswith("/tokens") else self.access)(review["spec"])
        except RehearsalError as error:  # the cloud is away
            return 500, {**review, "status": {"error": str(error)}}
        return 200, {**review, "status": status}

    def token(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the status of a TokenReview. A user is called as the account."""
        account = self._control.clusters("account", token=spec.get("token", ""))["account"]
        return {"authenticated": True, "user": {"username": account}} if account else {"authenticated": False}

    def access(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the status of a SubjectAccessReview."""
        attributes = spec.get("resourceAttributes") or {}
        keys = ("group", "resource", "subresource", "verb")
        return self._control.clusters(
            "access",
            account=spec["user"],
            cluster=self._cluster,
            **{key: attributes.get(key, "") for key in keys},
        )
