"""Token for a kubeconfig, in builds, which have no `gke-gcloud-auth-plugin` of Google.

The token is that of the application default credentials, as `--use_application_default_credentials` says of
Google's plug-in; without that it asks gcloud, which the image hasn't.
https://kubernetes.io/docs/reference/config-api/client-authentication.v1beta1/
"""

from __future__ import annotations

import datetime
import json
import sys

import google.auth
import google.auth.exceptions
import google.auth.transport.requests

from google_facts.scopes import LOGIN


def main() -> int:
    """Print an ExecCredential; without a login, one line on standard error."""
    try:
        credentials, _ = google.auth.default(scopes=LOGIN)
        credentials.refresh(google.auth.transport.requests.Request())  # type: ignore[no-untyped-call]
    except google.auth.exceptions.GoogleAuthError as error:
        print(f"gke-gcloud-auth-plugin: {error}", file=sys.stderr)
        return 1
    status = {"token": credentials.token}
    if credentials.expiry:
        ends = credentials.expiry.replace(tzinfo=datetime.UTC)
        status["expirationTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
    kind = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
    print(json.dumps({**kind, "spec": {"interactive": False}, "status": status}))
    return 0


def entry() -> None:
    """Run `main` as a program."""
    sys.exit(main())
