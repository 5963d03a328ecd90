"""The API server's questions to Google: whose a token is, and whether IAM gives an account what it asks for.

Webhooks of https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication
and https://kubernetes.io/docs/reference/access-authn-authz/webhook/. At Google, the front end of the DNS
endpoint asks for `container.clusters.connect`; here the second webhook does, before anything else.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rehearsal.cloud.control import Control
from rehearsal.errors import RehearsalError

_ADDRESS = "127.0.0.1"


class Reviews:
    """A server at `url` that passes the questions of one cluster's API server on to the cloud."""

    def __init__(self, control: Control, cluster: str):
        """`cluster`: its full name."""
        self._control, self._cluster = control, cluster
        reviews = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    answers = reviews.token if self.path.startswith("/tokens") else reviews.access
                    status, code = answers(review["spec"]), 200
                except RehearsalError as error:  # the cloud is away
                    status, code = {"error": str(error)}, 500
                answer = json.dumps({**review, "status": status}).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Log nothing: reviews are frequent."""

        self._server = ThreadingHTTPServer((_ADDRESS, 0), Handler)
        self.url = f"http://{_ADDRESS}:{self._server.server_port}"

    def start(self) -> None:
        """Answer, in threads."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

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
