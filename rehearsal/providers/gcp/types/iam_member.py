"""Members of IAM policies: one class, and of each type how its API spells reading and writing a policy.

A policy is read, changed and written back with its etag; afterwards it is read until the change
shows three times running, since policies spread slowly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import Context, Resource
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import IAM, KMS, RESOURCE_MANAGER, STORAGE, Service
from rehearsal.providers.gcp.types.services import ARTIFACT_REGISTRY, PUBSUB, RUN, SECRET_MANAGER
from rehearsal.providers.plugin.errors import OperationError, ProviderApiError, StandInError

_POLICY_VERSION = 3  # the one that has conditions
_CONFIRMATIONS = 3
_CONFLICTS = (409, 412)  # somebody else wrote the policy between our read and our write

Policy = dict[str, Any]


@dataclass(frozen=True)
class Grant:
    """A member to add to a policy's binding, or to remove."""

    role: str
    member: str
    condition: Mapping[str, str] | None
    present: bool

    def apply(self, policy: Policy) -> Policy:
        """Return the policy with this change; bindings and members in alphabetical order."""
        bindings = [dict(binding) for binding in policy.get("bindings") or ()]
        binding = next((b for b in bindings if self._is_mine(b)), None)
        if binding is None and self.present:
            condition = {"condition": dict(self.condition)} if self.condition else {}
            binding = {"role": self.role, "members": [], **condition}
            bindings.append(binding)
        if binding is not None:
            members = {m for m in binding["members"] if m != self.member}
            binding["members"] = sorted(members | {self.member} if self.present else members)
        stored = sorted(
            (b for b in bindings if b["members"]), key=lambda b: (b["role"], str(b.get("condition")))
        )
        rest = {key: value for key, value in policy.items() if key in ("auditConfigs", "etag")}
        return {**rest, "version": _POLICY_VERSION, **({"bindings": stored} if stored else {})}

    def holds(self, policy: Policy) -> bool:
        """Return True if the policy already has this change."""
        granted = any(self._is_mine(b) and self.member in b["members"] for b in policy.get("bindings") or ())
        return granted is self.present

    def _is_mine(self, binding: Mapping[str, Any]) -> bool:
        own = {k: v for k, v in (self.condition or {}).items() if v}
        condition = {k: v for k, v in (binding.get("condition") or {}).items() if v}
        return binding["role"] == self.role and own == condition


@dataclass(frozen=True)
class PolicyAccess:
    """An API's form of the policy of the resource in the property `scope`, with the full name `path`.

    `joined`: changes that arrive together become one request.
    """

    scope: str
    path: str
    read: tuple[str, str] = ("GET", ":getIamPolicy")
    read_query: Mapping[str, str] = field(default_factory=dict)
    read_body: Any = None
    write: tuple[str, str] = ("POST", ":setIamPolicy")
    write_extra: Mapping[str, str] | None = field(default_factory=dict)  # None: the policy stands alone
    joined: bool = False


class PolicyMember(Resource):
    """A member of a policy."""

    def __init__(self, access: PolicyAccess, *table: Any, **more: Any) -> None:
        super().__init__(*table, **more)
        self.access = access
        self.scope = access.scope

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Add the member."""
        self.write(context, planned, _change(planned, present=True))

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Take the member out; the policy is read once more at the end, as recorded."""
        self.write(context, known, _change(known, present=False))
        self.get_policy(context, known)

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the member's entry in the policy, or None."""
        imported = not prior.get("role")
        if imported:
            prior, title = self._imported(id_)
        try:
            policy = self.get_policy(context, prior)
        except ProviderApiError as error:
            if error.status == 404:
                return None
            raise
        if imported:
            prior = {**prior, "condition": _condition(policy, str(prior["role"]), title)}
            id_ = self.id(prior)
        if not _change(prior, present=True).holds(policy):
            return None
        outputs = mapping.outputs(self.table, policy, {**prior, self.scope: self.scope_id(prior)}, id_)
        condition = prior.get("condition")
        return {
            **outputs,
            "condition": {"description": "", **_without_marks(condition)} if condition else None,
        }

    def id(self, planned: Mapping[str, Any]) -> str:
        """Scope, role, member and condition, as the official provider joins them."""
        words = [self.scope_id(planned), planned["role"], planned["member"]]
        if condition := planned.get("condition"):
            words += [condition["title"], condition.get("description") or "", condition["expression"]]
        return "/".join(words)

    def _imported(self, id_: str) -> tuple[Mapping[str, Any], str]:
        """Return the parts of an import's id, and the title of the condition; separated by spaces, unlike a
        state's.
        """
        words = id_.split(maxsplit=3)
        if len(words) < 3:
            raise StandInError(
                f"the stand-in can't import {self.label} {id_!r}: it takes SCOPE ROLE MEMBER [TITLE]"
            )
        scope = words[0].removeprefix("b/") if self.scope == "bucket" else words[0]
        return {self.scope: scope, "role": words[1], "member": words[2]}, "".join(words[3:])

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """Return no properties: roles and conditions hold slashes, so the id can't be split."""
        return {}

    def write(self, context: Context, known: Mapping[str, Any], change: Grant) -> None:
        """Bring one change into the policy, joined with others or after them."""
        key = f"policy {self.scope_id(known)}"

        def send(changes: list[Grant]) -> None:
            with context.batches.lock(key):
                self._modify(context, known, changes)

        if self.access.joined:
            context.batches.join(key, change, send)
        else:
            send([change])

    def _modify(self, context: Context, known: Mapping[str, Any], changes: Sequence[Grant]) -> None:
        deadline = context.deadline
        while True:
            policy = self.get_policy(context, known)
            if all(change.holds(policy) for change in changes):
                return
            for change in changes:
                policy = change.apply(policy)
            try:
                self.set_policy(context, known, policy)
                break
            except ProviderApiError as error:
                if error.status not in _CONFLICTS or time.monotonic() > deadline:
                    raise
                context.client.pause(context.poll_s)
        self._confirm(context, known, changes, deadline)

    def _confirm(
        self, context: Context, known: Mapping[str, Any], changes: Sequence[Grant], deadline: float
    ) -> None:
        seen = 0
        while seen < _CONFIRMATIONS:
            policy = self.get_policy(context, known)
            seen = seen + 1 if all(change.holds(policy) for change in changes) else 0
            if time.monotonic() > deadline:
                raise OperationError(f"the policy of {self.scope_id(known)} doesn't show the change")
            if seen < _CONFIRMATIONS:
                context.client.pause(context.poll_s)

    def scope_id(self, known: Mapping[str, Any]) -> str:
        """Return the policy's resource as spelled in ids."""
        scope = str(known[self.scope])
        if scope.startswith(self.access.path.partition("{")[0]) and "/" in scope:
            return scope
        return self._fill(self.access.path, known)

    def get_policy(self, context: Context, known: Mapping[str, Any]) -> Policy:
        """Return the current policy."""
        access, (method, suffix) = self.access, self.access.read
        policy: Policy = self.call(
            context, method, self._path(known, suffix), known, body=access.read_body, query=access.read_query
        )
        return policy

    def set_policy(self, context: Context, known: Mapping[str, Any], policy: Policy) -> None:
        """Write the policy; refused if its etag is old."""
        extra, (method, suffix) = self.access.write_extra, self.access.write
        content = policy if extra is None else {"policy": policy, **extra}
        self.call(context, method, self._path(known, suffix), known, body=content)

    def _path(self, known: Mapping[str, Any], suffix: str) -> str:
        return self._fill(self.table.item, {**known, "policy": self.scope_id(known)}) + suffix


def _without_marks(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "__defaults"}


def _condition(policy: Policy, role: str, title: str) -> Mapping[str, Any] | None:
    """Return the condition of that title under which a policy grants the role."""
    condition = (
        binding.get("condition") for binding in policy.get("bindings") or () if binding["role"] == role
    )
    return next((binding for binding in condition if binding and binding.get("title") == title), None)


def _change(known: Mapping[str, Any], *, present: bool) -> Grant:
    condition = {k: str(v) for k, v in _without_marks(known.get("condition") or {}).items() if v}
    return Grant(str(known["role"]), str(known["member"]), condition or None, present)


def _member(
    token: str,
    service: Service,
    access: PolicyAccess,
    item: str = "{policy}",
    *,
    library: bool = False,
    schema: str = "Policy",
    **more: Any,
) -> PolicyMember:
    exceptions = {
        "member role condition": "local",
        "condition.*": "nameless",
        access.scope: {"is": "local", "same": _same_scope},
        "location": "local",
    }
    return PolicyMember(
        access, token, service, item, (), exceptions, schema=schema, client_library=library, **more
    )


def _same_scope(wanted: Any, current: Any) -> bool:
    """Return True if a name and a full path, or `b/BUCKET` and its name, mean the same resource."""
    return bool(wanted == current) or str(wanted).rpartition("/")[2] == str(current).rpartition("/")[2]


_POST = ("POST", ":getIamPolicy")
_DOTTED = {"options.requestedPolicyVersion": str(_POLICY_VERSION)}

PROJECT_IAM_MEMBER = _member(
    "gcp:projects/iAMMember:IAMMember",
    RESOURCE_MANAGER,
    PolicyAccess(
        "project",
        "{project}",
        _POST,
        read_body={"options": {"requestedPolicyVersion": _POLICY_VERSION}},
        write_extra={"updateMask": "bindings,etag,auditConfigs"},
        joined=True,
    ),
    "projects/{policy}",
    library=True,
    delete_before_replace=True,  # recorded: the old member goes before the new one comes
)
BUCKET_IAM_MEMBER = _member(
    "gcp:storage/bucketIAMMember:BucketIAMMember",
    STORAGE,
    PolicyAccess(
        "bucket",
        "b/{bucket}",
        ("GET", "/iam"),
        {"optionsRequestedPolicyVersion": str(_POLICY_VERSION)},
        write=("PUT", "/iam"),
        write_extra=None,
    ),
)
ACCOUNT_IAM_MEMBER = _member(
    "gcp:serviceaccount/iAMMember:IAMMember",
    IAM,
    PolicyAccess("serviceAccountId", "{serviceAccountId}", _POST, _DOTTED),
    library=True,
)
# Not recorded; as in the provider's source (google/services/kms/iam_kms_crypto_key.go of
# https://github.com/hashicorp/terraform-provider-google).
CRYPTO_KEY_IAM_MEMBER = _member(
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember",
    KMS,
    PolicyAccess("cryptoKeyId", "{cryptoKeyId}", read_query=_DOTTED),
    library=True,
)
# Nor was this one: google/services/cloudrunv2/iam_cloud_run_v2_service.go.
RUN_SERVICE_IAM_MEMBER = _member(
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember",
    RUN,
    PolicyAccess("name", "projects/{project}/locations/{location}/services/{name}"),
    schema="GoogleIamV1Policy",
)
REPOSITORY_IAM_MEMBER = _member(
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember",
    ARTIFACT_REGISTRY,
    PolicyAccess("repository", "projects/{project}/locations/{location}/repositories/{repository}"),
)
TOPIC_IAM_MEMBER = _member(
    "gcp:pubsub/topicIAMMember:TopicIAMMember",
    PUBSUB,
    PolicyAccess("topic", "projects/{project}/topics/{topic}"),
)
SECRET_IAM_MEMBER = _member(
    "gcp:secretmanager/secretIamMember:SecretIamMember",
    SECRET_MANAGER,
    PolicyAccess("secretId", "projects/{project}/secrets/{secretId}", read_query=_DOTTED),
)
