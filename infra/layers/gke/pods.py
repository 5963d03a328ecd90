"""Pods of the namespaces, as IAM's policies name them."""

from __future__ import annotations

from infra.core import names
from infra.layers.gke.settings import GkeSettings
from infra.settings.schema import Settings

PRINCIPALS = "principal://iam.googleapis.com/projects/"
"""Beginning of a namespace's principal, before the project's number."""


def member_of(settings: Settings, namespace: str) -> str:
    """Return the member that a namespace's pods are, or act as; of a principal its end.

    Before the end stand PRINCIPALS and the project's number.
    https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity
    """
    desired = settings[GkeSettings]
    if desired.workload_account_id:
        return f"serviceAccount:{names.account_email(settings, desired.workload_account_id)}"
    return (
        f"/locations/global/workloadIdentityPools/{settings.project}.svc.id.goog"
        f"/subject/ns/{namespace}/sa/{desired.kubernetes_account}"
    )


def identity(settings: Settings, namespace: str) -> str:
    """Return a namespace's pods as IAM names those who impersonate an account: no cluster is in it."""
    return f"{settings.project}.svc.id.goog[{namespace}/{settings[GkeSettings].kubernetes_account}]"
