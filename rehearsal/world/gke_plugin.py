"""Imitates `gke-gcloud-auth-plugin`: prints an access token of the person who is logged in, for kubectl.

The protocol: https://kubernetes.io/docs/reference/config-api/client-authentication.v1beta1/. Google's plug-in
asks gcloud for the token; this one takes the application default credentials that a world's people have.
"""

from __future__ import annotations

import datetime
import json
import sys

import google.auth
import google.auth.exceptions
import google.auth.transport.requests

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def main() -> int:
    """Print an ExecCredential; who isn't logged in gets one line on standard error."""
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        credentials.refresh(google.auth.transport.requests.Request())  # type: ignore[no-untyped-call]
    except google.auth.exceptions.GoogleAuthError as error:
        print(f"gke-gcloud-auth-plugin (imitated): {error}", file=sys.stderr)
        return 1
    status = {"token": credentials.token}
    if credentials.expiry:
        ends = credentials.expiry.replace(tzinfo=datetime.UTC)
        status["expirationTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
    kind = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
    print(json.dumps({**kind, "spec": {"interactive": False}, "status": status}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
