"""Builds layer: accounts that preview and apply by Cloud Build, and the repository of the builder image."""

from __future__ import annotations

from collections.abc import Iterable

from infra.core.layer import Layer, deferred
from infra.core.providers import GOOGLE
from infra.google.role import Role
from infra.layers.builds import commands
from infra.layers.builds.outputs import BuildsOutputs
from infra.layers.builds.rules import RULES
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.prices.row import Rate, rate
from infra.settings.schema import Settings


def _at_google(settings: Settings) -> dict[str, str]:
    emails = commands.account_emails(settings).values()
    accounts = (f"projects/{settings.project}/serviceAccounts/{email}" for email in emails)
    repository = commands.repository_id(settings)
    return {
        **{account: f"https://iam.googleapis.com/v1/{account}" for account in accounts},
        repository: f"https://artifactregistry.googleapis.com/v1/{repository}",
    }


def _rates(settings: Settings) -> Iterable[Rate]:
    return [rate(id_, settings[StorageSettings].location) for id_ in ("registry", "build")]


_ROLES = (
    Role(
        "roles/iam.serviceAccountAdmin", "create the builds' accounts and their policies",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete"),
    ),
    Role(
        "roles/iam.roleAdmin", "define the builds' custom roles",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "grant the builds' accounts their roles",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/storage.admin", "let builds use the state's bucket",
        ("storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"),
    ),
    Role(
        "roles/cloudkms.admin", "let builds use the state's key",
        ("cloudkms.cryptoKeys.getIamPolicy", "cloudkms.cryptoKeys.setIamPolicy"),
    ),
    Role(
        "roles/artifactregistry.admin", "create the repository of the builder image",
        ("artifactregistry.repositories.create", "artifactregistry.repositories.get",
         "artifactregistry.repositories.update", "artifactregistry.repositories.delete",
         "artifactregistry.repositories.getIamPolicy", "artifactregistry.repositories.setIamPolicy"),
    ),
)  # fmt: skip

LAYER = Layer(
    name="builds",
    reads=("storage",),
    settings=BuildsSettings,
    rules=RULES,
    roles=_ROLES,
    services=lambda _: ("artifactregistry.googleapis.com", "cloudbuild.googleapis.com"),
    providers=GOOGLE,
    outputs=BuildsOutputs,
    rates=_rates,
    at_google=_at_google,
    ids={
        "gcp:artifactregistry/repository:Repository": (
            "projects/{project}/locations/{location}/repositories/{repositoryId}"
        ),
        "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
            "projects/{project}/locations/{location}/repositories/{repository} {role} {member}"
        ),
        "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember": "{cryptoKeyId} {role} {member}",
    },
    program=deferred(f"{__package__}.program"),
)
