"""Members of IAM policies of projects, buckets and service accounts.

gcp:projects/iAMMember:IAMMember, gcp:storage/bucketIAMMember:BucketIAMMember,
gcp:serviceaccount/iAMMember:IAMMember.

A policy is read, changed and written back with its etag; afterwards it is read until the change
shows three times running, since policies spread slowly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rehearsal.standin import mapping
from rehearsal.standin.errors import ApiError, OperationError, StandInError
from rehearsal.standin.lifecycle import Context, Resource
from rehearsal.standin.settings import Settings
from rehearsal.standin.table import IAM, RESOURCE_MANAGER, STORAGE, Field, Kind, Table

_POLICY_VERSION = 3  # the one that has conditions
_CONFIRMATIONS = 3
_CONFLICTS = (409, 412)  # somebody else wrote the policy between our read and our write

Policy = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One member to be in a policy's binding, or not to be."""

    role: str
    member: str
    condition: Mapping[str, str] | None
    present: bool

    def apply(self, policy: Policy) -> Policy:
        """The policy with this change; bindings and members in alphabetical order."""
        bindings = [dict(binding) for binding in policy.get("bindings") or ()]
        binding = next((b for b in bindings if self._is_mine(b)), None)
        if binding is None and self.present:
            condition = {"condition": dict(self.condition)} if self.condition else {}
            binding = {"role": self.role, "members": [], **condition}
            bindings.append(binding)
        if binding is not None:
            others = {m for m in binding["members"] if m != self.member}
            binding["members"] = sorted(others | {self.member} if self.present else others)
        kept = sorted(
            (b for b in bindings if b["members"]), key=lambda b: (b["role"], str(b.get("condition")))
        )
        rest = {key: value for key, value in policy.items() if key in ("auditConfigs", "etag")}
        return {**rest, "version": _POLICY_VERSION, **({"bindings": kept} if kept else {})}

    def holds(self, policy: Policy) -> bool:
        """Whether the policy is as this change wants it."""
        granted = any(self._is_mine(b) and self.member in b["members"] for b in policy.get("bindings") or ())
        return granted is self.present

    def _is_mine(self, binding: Mapping[str, Any]) -> bool:
        own = {k: v for k, v in (self.condition or {}).items() if v}
        theirs = {k: v for k, v in (binding.get("condition") or {}).items() if v}
        return binding["role"] == self.role and own == theirs


class PolicyMember(Resource):
    """A member of the policy of whatever the property `scope` names; this class is the project's."""

    scope = "project"
    joined = True  # changes that arrive together become one request

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Add the member."""
        self.write(context, planned, _change(planned, present=True))

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Take the member out; the policy is read once more at the end, as recorded."""
        self.write(context, known, _change(known, present=False))
        self.get_policy(context, known)

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """The member as it stands in the policy, or None if it doesn't."""
        imported = not prior.get("role")
        if imported:
            prior, title = self._imported(id_)
        try:
            policy = self.get_policy(context, prior)
        except ApiError as error:
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
        """What the id of an import says, and the title of the condition; spaces between, unlike a state's."""
        words = id_.split(maxsplit=3)
        if len(words) < 3:
            raise StandInError(
                f"the stand-in can't import {self.label} {id_!r}: it takes SCOPE ROLE MEMBER [TITLE]"
            )
        scope = words[0].removeprefix("b/") if self.scope == "bucket" else words[0]
        return {self.scope: scope, "role": words[1], "member": words[2]}, "".join(words[3:])

    def parse(self, id_: str, settings: Settings) -> dict[str, str]:
        """Nothing: roles and conditions hold slashes, so the id can't be taken apart."""
        return {}

    def write(self, context: Context, known: Mapping[str, Any], change: Change) -> None:
        """Bring one change into the policy, joined with others or after them."""
        key = f"policy {self.scope_id(known)}"

        def send(changes: list[Change]) -> None:
            with context.batches.lock(key):
                self._modify(context, known, changes)

        if self.joined:
            context.batches.join(key, change, send)
        else:
            send([change])

    def _modify(self, context: Context, known: Mapping[str, Any], changes: Sequence[Change]) -> None:
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
            except ApiError as error:
                if error.status not in _CONFLICTS or time.monotonic() > deadline:
                    raise
                context.client.pause(context.poll_s)
        self._confirm(context, known, changes, deadline)

    def _confirm(
        self, context: Context, known: Mapping[str, Any], changes: Sequence[Change], deadline: float
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
        """What the policy belongs to, as it stands in ids."""
        return str(known["project"])

    def get_policy(self, context: Context, known: Mapping[str, Any]) -> Policy:
        """The policy as it is now."""
        asked = {"options": {"requestedPolicyVersion": _POLICY_VERSION}}
        policy: Policy = self.call(
            context, "POST", f"projects/{known['project']}:getIamPolicy", known, body=asked
        )
        return policy

    def set_policy(self, context: Context, known: Mapping[str, Any], policy: Policy) -> None:
        """Write the policy; refused if its etag is old."""
        content = {"policy": policy, "updateMask": "bindings,etag,auditConfigs"}
        self.call(context, "POST", f"projects/{known['project']}:setIamPolicy", known, body=content)


class BucketMember(PolicyMember):
    """A member of a bucket's policy."""

    scope = "bucket"
    joined = False

    def scope_id(self, known: Mapping[str, Any]) -> str:
        """`b/BUCKET`."""
        return f"b/{_bucket(known['bucket'])}"

    def get_policy(self, context: Context, known: Mapping[str, Any]) -> Policy:
        """The policy as it is now."""
        query = {"optionsRequestedPolicyVersion": str(_POLICY_VERSION)}
        policy: Policy = self.call(context, "GET", f"{self.scope_id(known)}/iam", known, query=query)
        return policy

    def set_policy(self, context: Context, known: Mapping[str, Any], policy: Policy) -> None:
        """Write the policy; refused if its etag is old."""
        self.call(context, "PUT", f"{self.scope_id(known)}/iam", known, body=policy)


class AccountMember(PolicyMember):
    """A member of a service account's policy: one who may act as the account."""

    scope = "serviceAccountId"
    joined = False

    def scope_id(self, known: Mapping[str, Any]) -> str:
        """`projects/P/serviceAccounts/EMAIL`, as the program gives it."""
        return str(known["serviceAccountId"])

    def get_policy(self, context: Context, known: Mapping[str, Any]) -> Policy:
        """The policy as it is now; this API wants the version in the query."""
        query = {"options.requestedPolicyVersion": str(_POLICY_VERSION)}
        policy: Policy = self.call(
            context, "POST", f"{self.scope_id(known)}:getIamPolicy", known, query=query
        )
        return policy

    def set_policy(self, context: Context, known: Mapping[str, Any], policy: Policy) -> None:
        """Write the policy; refused if its etag is old."""
        self.call(context, "POST", f"{self.scope_id(known)}:setIamPolicy", known, body={"policy": policy})


def _bucket(name: str) -> str:
    return name.removeprefix("b/")


def _without_marks(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "__defaults"}


def _condition(policy: Policy, role: str, title: str) -> Mapping[str, Any] | None:
    """The condition of that title under which a policy grants the role."""
    found = (one.get("condition") for one in policy.get("bindings") or () if one["role"] == role)
    return next((one for one in found if one and one.get("title") == title), None)


def _change(known: Mapping[str, Any], *, present: bool) -> Change:
    condition = {k: str(v) for k, v in _without_marks(known.get("condition") or {}).items() if v}
    return Change(str(known["role"]), str(known["member"]), condition or None, present)


_MEMBER = (
    Field("member", rest=None, required=True, replaces=True),
    Field("role", rest=None, required=True, replaces=True),
    Field(
        "condition",
        Kind.BLOCK,
        rest=None,
        replaces=True,
        fields=(Field("title", required=True), Field("expression", required=True), Field("description")),
    ),
    Field("etag", output=True),
)

PROJECT_IAM_MEMBER = PolicyMember(
    Table(
        token="gcp:projects/iAMMember:IAMMember",
        service=RESOURCE_MANAGER,
        collection="projects/{project}",
        item="projects/{project}",
        client_library=True,
        auto_name=False,
        delete_before_replace=True,  # recorded: the old member goes before the new one comes
        fields=(Field("project", rest=None, required=True, replaces=True), *_MEMBER),
    )
)

BUCKET_IAM_MEMBER = BucketMember(
    Table(
        token="gcp:storage/bucketIAMMember:BucketIAMMember",
        service=STORAGE,
        collection="b/{bucket}/iam",
        item="b/{bucket}/iam",
        auto_name=False,
        fields=(
            Field(
                "bucket",
                rest=None,
                required=True,
                replaces=True,
                same=lambda one, other: _bucket(one) == _bucket(other),
            ),
            *_MEMBER,
        ),
    )
)

ACCOUNT_IAM_MEMBER = AccountMember(
    Table(
        token="gcp:serviceaccount/iAMMember:IAMMember",
        service=IAM,
        collection="{serviceAccountId}",
        item="{serviceAccountId}",
        client_library=True,
        auto_name=False,
        fields=(Field("serviceAccountId", rest=None, required=True, replaces=True), *_MEMBER),
    )
)
