"""Terraform's names of the resource types of Pulumi's provider, which is made from Terraform's."""

import re

_MODULES = {
    "artifactregistry": "artifact_registry",
    "cloudfunctionsv2": "cloudfunctions2",
    "cloudrunv2": "cloud_run_v2",
    "cloudscheduler": "cloud_scheduler",
    "projects": "project",
    "secretmanager": "secret_manager",
    "serviceaccount": "service_account",
}
"""Modules of the SDK that Terraform writes otherwise."""
_TYPES = {"gcp:serviceaccount/account:Account": "google_service_account"}
_SUBWORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def type_name(token: str) -> str:
    """Return Terraform's name of a type: `google_storage_bucket` of `gcp:storage/bucket:Bucket`."""
    module, name = token.split(":")[1].split("/")[0], token.rpartition(":")[2]
    return _TYPES.get(token) or f"google_{_MODULES.get(module, module)}_{_SUBWORD.sub('_', name).lower()}"
