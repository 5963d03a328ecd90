"""Outputs of the builds layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.builds import names
from infra.layers.builds.access import by_hand
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class BuildsOutputs(Outputs, layer="builds"):
    """Account of the builds and commands that start them."""

    account_email: Output[str] = output("`tpu-builds@PROJECT.iam.gserviceaccount.com`")
    submit: Output[dict[str, str]] = output("mapping: gcloud's command for each build, by the build's name")
    by_hand: Output[list[str]] = output(
        "commands of a billing administrator, without which builds can't make the budget"
    )

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
        return {
            "account_email": names.email(settings),
            "submit": names.submit(settings),
            "by_hand": [*by_hand(settings)],
        }


def applying_member(settings: Settings) -> str | None:
    """Return the account that Cloud Build applies as, as policies name it; None where no builds do.

    Raises UpstreamError in an update where builds isn't up: a grant to it would fail amid what is made.
    """
    from infra.core import upstream  # imports pulumi, which outputs alone don't need

    if settings.get(BuildsSettings) is None:
        return None
    _ = upstream.read(BuildsOutputs, settings).account_email
    return f"serviceAccount:{names.email(settings)}"
