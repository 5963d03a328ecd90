"""Names and paths that builds use, and the commands that start them."""

from __future__ import annotations

from infra.core.names import account_email
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

KINDS = ("provision", "destroy")
FOLDER = "cloudbuild"
"""Folder that `tpu builds render` writes to, by environment."""
SOURCES = "sources/"
"""Folder of the state's bucket for uploaded checkouts."""


def email(settings: Settings) -> str:
    """Return the address of the account that builds run as."""
    return account_email(settings, settings[BuildsSettings].account_id)


def submit(settings: Settings) -> dict[str, str]:
    """Return gcloud's command for each build, from the root of a checkout."""
    sources = f"gs://{settings[StorageSettings].state_bucket_name}/{SOURCES.rstrip('/')}"
    return {
        kind: f"gcloud builds submit --project={settings.project} --gcs-source-staging-dir={sources} "
        f"--config={FOLDER}/{settings.environment}/{kind}.yaml"
        for kind in KINDS
    }
