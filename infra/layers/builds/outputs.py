"""Outputs of the builds layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.builds import commands
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class BuildsOutputs(Outputs, layer="builds"):
    """Accounts of the builds and commands that start them."""

    preview_account_email: Output[str] = output("`tpu-preview@PROJECT.iam.gserviceaccount.com`")
    apply_account_email: Output[str] = output("`tpu-apply@PROJECT.iam.gserviceaccount.com`")
    image_account_email: Output[str] = output("`tpu-image@PROJECT.iam.gserviceaccount.com`")
    repository: Output[str] = output("`us-east5-docker.pkg.dev/PROJECT/tpu-builds`, for the builder image")
    submit: Output[dict[str, str]] = output("mapping: the command that starts each build, by its name")

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
        emails = commands.account_emails(settings)
        return {
            **{f"{who}_account_email": email for who, email in emails.items()},
            "repository": commands.repository(settings),
            "submit": commands.submit(settings),
        }
