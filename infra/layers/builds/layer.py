"""Builds layer: the account by which Cloud Build brings layers up and down."""

from __future__ import annotations

from collections.abc import Iterable

from infra.core.layer import Layer, Named, deferred
from infra.core.providers import GOOGLE
from infra.google.role import Role
from infra.layers.builds import names
from infra.layers.builds.outputs import BuildsOutputs
from infra.layers.builds.rules import RULES
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.prices.row import Rate, rate
from infra.settings.schema import Settings


def _at_google(settings: Settings) -> dict[str, str]:
    account = f"projects/{settings.project}/serviceAccounts/{names.email(settings)}"
    return {account: f"https://iam.googleapis.com/v1/{account}"}


def _rates(settings: Settings) -> Iterable[Rate]:
    return [rate("build", settings[StorageSettings].location)]


_ROLES = (
    Role(
        "roles/iam.serviceAccountAdmin", "create the builds' account and its policy",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete"),
    ),
    Role(
        "roles/iam.roleAdmin", "create the builds' custom roles",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "grant the builds' account its roles",
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
)  # fmt: skip

LAYER = Layer(
    name="builds",
    reads=("storage",),
    settings=BuildsSettings,
    rules=RULES,
    roles=_ROLES,
    services=lambda _: ("cloudbuild.googleapis.com",),
    providers=GOOGLE,
    outputs=BuildsOutputs,
    accounts=lambda given: [Named("builds:accountId", given[BuildsSettings].account_id, "the builds'")],
    rates=_rates,
    at_google=_at_google,
    ids={"gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember": "{cryptoKeyId} {role} {member}"},
    program=deferred(f"{__package__}.program"),
)
