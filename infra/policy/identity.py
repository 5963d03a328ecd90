"""Rules for service accounts and grants."""

from collections.abc import Iterator

from infra.builds.settings import BuildsSettings
from infra.policy.rule import Check, Resource, Rule, forbidden
from infra.settings import Settings

_PROJECT = ("gcp:projects/iAMMember:IAMMember",)
_BASIC = ("roles/owner", "roles/editor", "roles/viewer")
_IMPERSONATION = (
    "roles/iam.serviceAccountUser", "roles/iam.serviceAccountTokenCreator", "roles/iam.workloadIdentityUser",
)  # fmt: skip
_DEFAULT_ACCOUNTS = ("-compute@developer.gserviceaccount.com", "@appspot.gserviceaccount.com")
_QUARTER_S = 90 * 86400


def _role(one: Resource) -> str:
    return str(one.inputs.get("role", ""))


def _basic(one: Resource, _: Settings) -> Iterator[str]:
    if _role(one) in _BASIC:
        yield f"role: {_role(one)}"


def _is_machine(one: Resource) -> bool:
    return str(one.inputs.get("member", "")).startswith("serviceAccount:")


def _admin(one: Resource, settings: Settings) -> Iterator[str]:
    if _is_machine(one) and "admin" in _role(one).lower() and not _applies(one, settings):
        yield f"role: {_role(one)}"


def _applies(one: Resource, settings: Settings) -> bool:
    """Whether it is granted to the account that brings stacks up in builds, as a platform engineer does."""
    builds = settings.get(BuildsSettings)
    return builds is not None and f":{builds.apply_account_id}@" in str(one.inputs.get("member"))


def _impersonation(one: Resource, _: Settings) -> Iterator[str]:
    if _role(one) in _IMPERSONATION:
        yield f"role: {_role(one)}"


def _storage(one: Resource, settings: Settings) -> Iterator[str]:
    if _role(one).startswith("roles/storage.") and not _applies(one, settings):
        yield f"role: {_role(one)}"


def _default(one: Resource, _: Settings) -> Iterator[str]:
    places = ("serviceAccount.email", "nodeConfig.serviceAccount", "member", "serviceAccountEmail")
    for path in places:
        if (found := one.get(path)) and str(found).endswith(_DEFAULT_ACCOUNTS):
            yield f"{path}: {found}"


def _rotation(one: Resource, _: Settings) -> Iterator[str]:
    period = str(one.inputs.get("rotationPeriod", ""))
    if not period.removesuffix("s").isdecimal() or int(period.removesuffix("s")) > _QUARTER_S:
        yield f"rotationPeriod: {period or 'nothing'}"
    if not one.protect:
        yield "protect: false"


def _on_project(id_: str, about: str, fix: str, maps: str, check: Check) -> Rule:
    return Rule(id_, _PROJECT, about, fix, maps, check)


RULES = (
    _on_project("I01", "no basic role, which holds thousands of permissions", "a role of one service",
                "CKV_GCP_117", _basic),
    _on_project("I02", "no program administers a service of the whole project, but the account "
                "of builds that applies", "a custom role, or the role on the resource",
                "CKV_GCP_42, CIS 1.5", _admin),
    _on_project("I03", "who may act as an account is granted on the account", "gcp.serviceaccount.IAMMember",
                "CKV_GCP_41, CKV_GCP_49, CIS 1.6", _impersonation),
    Rule("I04", ("gcp:serviceaccount/key:Key", "gcp:storage/hmacKey:HmacKey"), "no account has a key",
         "attach the account, or workload identity", "CKV2_GCP_3, CIS 1.4", forbidden),
    Rule("I05", ("gcp:*",), "nothing runs as, or is granted to, a default account",
         "an account of the component's own", "CKV_GCP_30, CKV2_GCP_1, CIS 4.1", _default),
    Rule("I07", ("gcp:*/*IAMPolicy", "gcp:*/*IAMBinding", "gcp:*/*IamPolicy", "gcp:*/*IamBinding"),
         "grants are added one by one: a whole policy would take others' away", "an IAMMember", "",
         forbidden),
    _on_project("I08", "roles of storage are granted on the bucket", "gcp.storage.BucketIAMMember", "",
                _storage),
    Rule("I10", ("gcp:kms/cryptoKey:CryptoKey",), "a key is rotated each 90 days, and no destroy takes it",
         'rotation_period="7776000s" and protect=True', "CKV_GCP_43, CIS 1.10", _rotation),
)  # fmt: skip
