"""The provider's settings: of `gcp.Provider(...)` or the stack's `gcp:` keys, and of the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.providers.gcp.table import Service
from rehearsal.providers.plugin.values import UNKNOWN

ATTRIBUTION_LABEL = {"goog-pulumi-provisioned": "true"}

_KNOWN = {
    "project", "region", "zone", "accessToken", "credentials", "defaultLabels", "addPulumiAttributionLabel",
    "userProjectOverride", "billingProject", "scopes",
    # Accepted and without effect here: they tune how the official provider reports or batches.
    "batching", "disableGooglePartnerName", "googlePartnerName", "pollInterval", "requestReason",
    "requestTimeout", "version", "pluginDownloadURL",
}  # fmt: skip

# The environment variables that the official provider reads for each setting, first one wins.
_VARIABLES = {
    "project": ("GOOGLE_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"),
    "region": ("GOOGLE_REGION", "GCLOUD_REGION", "CLOUDSDK_COMPUTE_REGION"),
    "zone": ("GOOGLE_ZONE", "GCLOUD_ZONE", "CLOUDSDK_COMPUTE_ZONE"),
    "accessToken": ("GOOGLE_OAUTH_ACCESS_TOKEN",),
    "credentials": ("GOOGLE_CREDENTIALS", "GOOGLE_CLOUD_KEYFILE_JSON", "GCLOUD_KEYFILE_JSON"),
    "billingProject": ("GOOGLE_BILLING_PROJECT",),
}


@dataclass(frozen=True)
class Settings:
    """Settings of every call; an unset location is ""."""

    project: str = ""
    region: str = ""
    zone: str = ""
    access_token: str = ""
    credentials: str = ""
    default_labels: Mapping[str, str] = field(default_factory=dict)
    attribution: bool = True
    billing_project: str = ""
    user_project_override: bool = False
    scopes: tuple[str, ...] = ("https://www.googleapis.com/auth/cloud-platform",)
    endpoints: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings from the provider's inputs (nested ones as JSON text) and the environment."""

        def text(key: str) -> str:
            value = given.get(key)
            if value is UNKNOWN or value is None:
                value = next((environ[name] for name in _VARIABLES.get(key, ()) if environ.get(name)), "")
            return str(value)

        def nested(key: str, default: Any) -> Any:
            value = given.get(key)
            if isinstance(value, str) and value:
                value = json.loads(value)
            return default if value in (None, "", UNKNOWN) else value

        return cls(
            project=text("project"),
            region=text("region"),
            zone=text("zone"),
            access_token=text("accessToken"),
            credentials=text("credentials"),
            default_labels=dict(nested("defaultLabels", {})),
            attribution=bool(nested("addPulumiAttributionLabel", True)),
            billing_project=text("billingProject"),
            user_project_override=bool(nested("userProjectOverride", False)),
            scopes=tuple(nested("scopes", cls.scopes)),
            endpoints={
                key: str(value) for key, value in given.items() if key.endswith("CustomEndpoint") and value
            },
        )

    def base(self, service: Service, environ: Mapping[str, str] = os.environ) -> str:
        """Root URL of `service`, ending in a slash."""
        root = self.endpoints.get(service.setting) or environ.get(service.variable)
        return service.under(root) if root else service.base

    def location(self, name: str) -> str:
        """Return the default for a resource's `project`, `region` or `zone`; a zone implies its region."""
        if name == "region" and not self.region and self.zone:
            return self.zone.rpartition("-")[0]
        return str(getattr(self, name))

    def effective_labels(self, labels: Mapping[str, Any] | None) -> dict[str, Any]:
        """Labels as they are sent: default ones, the resource's own over them, the attribution."""
        attribution = ATTRIBUTION_LABEL if self.attribution else {}
        return {**attribution, **self.default_labels, **(labels or {})}


def unknown_settings(given: Mapping[str, Any]) -> list[str]:
    """Names of provider settings that the stand-in would ignore, and so refuses."""
    return sorted(
        key for key in given if key not in _KNOWN and not key.endswith(("CustomEndpoint", "__internal"))
    )
