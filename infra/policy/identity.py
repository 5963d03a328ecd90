"""Rules for service accounts and grants."""

import re
from collections.abc import Iterator

from google_facts.agents import is_googles
from infra.core import names
from infra.core.environment import owners
from infra.google.role import BASIC, FOR_PROGRAMS
from infra.layers.builds.settings import BuildsSettings
from infra.layers.gke.settings import NODES
from infra.layers.pipeline import paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.names import HOSTS
from infra.policy.rule import Check, Resource, Rule, forbidden, never
from infra.settings.schema import Settings

_PROJECT = ("gcp:projects/iAMMember:IAMMember",)
_IMPERSONATION = (
    "roles/iam.serviceAccountUser", "roles/iam.serviceAccountTokenCreator", "roles/iam.workloadIdentityUser",
)  # fmt: skip
_DEFAULT_ACCOUNTS = ("-compute@developer.gserviceaccount.com", "@appspot.gserviceaccount.com")
_QUARTER_S = 90 * 86400
_SOURCES = re.compile(r'resource\.name\.startsWith\("projects/_/buckets/gcf-v2-sources-[^"]*"\)')


def _role(resource: Resource) -> str:
    return str(resource.inputs.get("role", ""))


def _is_machine(resource: Resource) -> bool:
    """Return True for all but people: also for pods, principal://…, and where the member is unknown yet."""
    return not str(resource.inputs.get("member", "")).startswith(("user:", "group:", "domain:"))


def _admin(resource: Resource, settings: Settings) -> Iterator[str]:
    if _is_machine(resource) and "admin" in _role(resource).lower() and not _applies(resource, settings):
        yield f"role: {_role(resource)}"


def _applies(resource: Resource, settings: Settings) -> bool:
    """Return True for a grant to the account that brings stacks up in builds, as a platform engineer does."""
    builds = settings.get(BuildsSettings)
    return builds is not None and f":{builds.account_id}@" in str(resource.inputs.get("member"))


def _storage(resource: Resource, settings: Settings) -> Iterator[str]:
    role = _role(resource)
    if not role.startswith("roles/storage.") or _applies(resource, settings):
        return
    if (role, resource.inputs.get("member")) != ("roles/storage.objectViewer", _build(settings)):
        yield f"role: {role}"
    elif not _SOURCES.fullmatch(limit := str(resource.get("condition.expression") or "nothing")):
        yield f"condition.expression: {limit}"


def _build(settings: Settings) -> str:
    """Return the account that builds functions, from a bucket that comes with the region's first one."""
    pipeline = settings.get(PipelineSettings)
    return f"serviceAccount:{paths.account(settings, paths.BUILD)}" if pipeline else ""


def _unknown(resource: Resource, settings: Settings) -> Iterator[str]:
    role, member = _role(resource), str(resource.inputs.get("member", ""))
    # Of others, other rules say what is wrong; a custom role has just the permissions that are used.
    others = role in (*BASIC, *_IMPERSONATION) or "admin" in role.lower() or role.startswith("roles/storage.")
    if role in FOR_PROGRAMS or others or not role.startswith("roles/"):
        return
    agent = role.endswith(".serviceAgent") and is_googles(member)  # which no program can be
    if _is_machine(resource) and not (
        agent or _spark(role, member, settings) or _applies(resource, settings)
    ):
        yield f"role: {role}"


def _spark(role: str, member: str, settings: Settings) -> bool:
    """Return True for the role that pipeline:sparkRole chooses, of Spark's account."""
    pipeline = settings.get(PipelineSettings)
    account = pipeline and paths.account(settings, paths.SPARK)
    return pipeline is not None and (role, member) == (pipeline.spark_role, f"serviceAccount:{account}")


def _default(resource: Resource, _: Settings) -> Iterator[str]:
    places = ("serviceAccount.email", "nodeConfig.serviceAccount", "member", "serviceAccountEmail")
    for path in places:
        if (account := resource.get(path)) and str(account).endswith(_DEFAULT_ACCOUNTS):
            yield f"{path}: {account}"


def _rotation(resource: Resource, _: Settings) -> Iterator[str]:
    period = str(resource.inputs.get("rotationPeriod", ""))
    if not period.removesuffix("s").isdecimal() or int(period.removesuffix("s")) > _QUARTER_S:
        yield f"rotationPeriod: {period or 'nothing'}"
    if not resource.protect:
        yield "protect: false"


_RUNS_AS = {
    ("gcp:tpu/v2Vm:V2Vm", "serviceAccount.email"): HOSTS,
    ("gcp:container/nodePool:NodePool", "nodeConfig.serviceAccount"): NODES,
    ("gcp:cloudscheduler/job:Job", "httpTarget.oidcToken.serviceAccountEmail"): paths.owner(paths.TRIGGER),
    ("gcp:cloudfunctionsv2/function:Function", "serviceConfig.serviceAccountEmail"): (
        paths.owner(paths.ORCHESTRATOR)
    ),
    ("gcp:cloudfunctionsv2/function:Function", "buildConfig.serviceAccount"): paths.owner(paths.BUILD),
}
"""Type, and where it names an account → the component whose account that is."""


def _its_own(resource: Resource, settings: Settings) -> Iterator[str]:
    accounts = {names.account_email(settings, id_): owner for id_, owner in owners(settings).items()}
    for path, component in (
        (path, whose) for (kind, path), whose in _RUNS_AS.items() if kind == resource.type
    ):
        account = str(resource.get(path) or "")
        owner = accounts.get(account.rpartition("/")[2], component)
        if owner != component:
            yield f"{path}: {account}, which is {owner}"


def _on_project(id_: str, about: str, fix: str, maps: str, check: Check) -> Rule:
    return Rule(id_, _PROJECT, about, fix, maps, check)


RULES = (
    _on_project("I01", "no basic role, which holds thousands of permissions", "a role of one service",
                "CKV_GCP_117", never("role", *BASIC)),
    _on_project("I02", "service accounts have no admin role on the project, except the builds' account",
                "a custom role, or the role on the resource",
                "CKV_GCP_42, CIS 1.5", _admin),
    _on_project("I03", "impersonation is granted on the service account, not on the project",
                "gcp.serviceaccount.IAMMember",
                "CKV_GCP_41, CKV_GCP_49, CIS 1.6", never("role", *_IMPERSONATION)),
    Rule("I04", ("gcp:serviceaccount/key:Key", "gcp:storage/hmacKey:HmacKey"), "no account has a key",
         "attach the account, or workload identity", "CKV2_GCP_3, CIS 1.4", forbidden),
    Rule("I05", ("gcp:*",), "nothing runs as, or is granted to, a default account",
         "a service account of the component's own", "CKV_GCP_30, CKV2_GCP_1, CIS 4.1", _default),
    Rule("I07", ("gcp:*/*IAMPolicy", "gcp:*/*IAMBinding", "gcp:*/*IamPolicy", "gcp:*/*IamBinding"),
         "grants are added one by one: replacing the policy would delete other grants", "an IAMMember", "",
         forbidden),
    _on_project("I08", "roles of storage are granted on the bucket", "gcp.storage.BucketIAMMember", "",
                _storage),
    _on_project("I13", "a service account's roles on the project can't read buckets or secrets",
                "the role on the resource, a custom role, or one that infra/google/role.py lists", "",
                _unknown),
    Rule("I11", tuple(dict.fromkeys(kind for kind, _ in _RUNS_AS)),
         "each component has its own service account",
         "a service account of the component's own", "", _its_own),
    Rule("I12", ("gcp:cloudfunctionsv2/functionIamMember:FunctionIamMember",),
         "callers of a 2nd gen function have run.invoker on its Cloud Run service",
         'gcp.cloudrunv2.ServiceIamMember(role="roles/run.invoker")', "",
         never("role", "roles/cloudfunctions.invoker")),
    Rule("I10", ("gcp:kms/cryptoKey:CryptoKey",), "keys are rotated every 90 days and protected",
         'rotation_period="7776000s" and protect=True', "CKV_GCP_43, CIS 1.10", _rotation),
)  # fmt: skip
