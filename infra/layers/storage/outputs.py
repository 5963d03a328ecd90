"""Outputs of the storage layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.storage import names as storage_names
from infra.layers.storage.names import (
    controller_bucket,
    steps_bucket,
)
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class StorageOutputs(Outputs, layer="storage"):
    """The buckets and the accounts."""

    bucket_name: Output[str] = output("`my-project-checkpoints`")
    steps_bucket_name: Output[str] = output("`my-project-checkpoints-steps`")
    service_account_email: Output[str] = output("`tpu-training@PROJECT.iam.gserviceaccount.com`")
    controller_bucket_name: Output[str] = output("`my-project-checkpoints-fleet`")
    project_number: Output[str] = output("number of the project, which names of Google's own accounts have")
    controller_account_email: Output[str] | None = output(
        "`tpu-fleet@PROJECT.iam.gserviceaccount.com`; absent: no `storage:controllerAccountId`", default=None
    )
    state_backend: Output[str] | None = output(
        "`gs://NAME`, for `pulumi login`; absent: no `storage:stateBucketName`", default=None
    )
    secrets_provider: Output[str] | None = output(
        "`gcpkms://…`, for `pulumi stack init`; absent: no `storage:stateKeyRing`", default=None
    )
    services: Output[list[str]] | None = output("Google's services that it has enabled", default=None)

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
        return {
            "bucket_name": settings[StorageSettings].bucket_name,
            "steps_bucket_name": steps_bucket(settings),
            "service_account_email": storage_names.service_account_email(settings),
            "controller_bucket_name": controller_bucket(settings),
        }
