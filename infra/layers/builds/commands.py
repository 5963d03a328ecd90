"""Names and paths that builds use, and the commands that start them."""

from infra.core import names
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

KINDS = ("image", "preview", "provision", "destroy")
FOLDER = "cloudbuild"
"""Folder that `tpu builds render` writes to, by environment."""
PLANS, SOURCES = "plans/", "sources/"
"""Folders of the state's bucket: saved plans by build, and uploads of `gcloud builds submit`."""


def account_emails(settings: Settings) -> dict[str, str]:
    """Return the addresses of the accounts that builds run as: preview, apply, image."""
    builds = settings[BuildsSettings]
    ids = {
        "preview": builds.preview_account_id, "apply": builds.apply_account_id,
        "image": builds.image_account_id,
    }  # fmt: skip
    return {who: names.account_email(settings, id_) for who, id_ in ids.items()}


def repository_id(settings: Settings) -> str:
    """Full id of the repository of the builder image."""
    place = f"projects/{settings.project}/locations/{settings[StorageSettings].location}"
    return f"{place}/repositories/{settings[BuildsSettings].repository}"


def repository(settings: Settings) -> str:
    """Return the repository's URL: the beginning of its images' names."""
    host = f"{settings[StorageSettings].location}-docker.pkg.dev"
    return f"{host}/{settings.project}/{settings[BuildsSettings].repository}"


def submit(settings: Settings) -> dict[str, str]:
    """Return the command that starts each build, from the root of a checkout."""
    sources = f"gs://{settings[StorageSettings].state_bucket_name}/{SOURCES.rstrip('/')}"
    lines = {
        kind: f"gcloud builds submit --project={settings.project} --gcs-source-staging-dir={sources} "
        f"--config={FOLDER}/{settings.environment}/{kind}.yaml"
        for kind in KINDS
    }
    lines["provision"] += " --substitutions=_PLAN=ID_OF_THE_PREVIEW"
    return lines
