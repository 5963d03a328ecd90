"""Authentication and access: tokens, policies and their slow propagation.

A principal is an e-mail address, or a pod's `principal://…`. A policy set on a resource takes effect
`Lags.grant_s` later, for grants and for revocations.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from google_facts import roles
from google_facts.agents import AGENTS, Made, is_googles, of_address
from google_facts.scopes import LOGIN
from rehearsal.cloud.core import constraints
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request, not_found
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.accounts import agent as agent
from rehearsal.cloud.iam.accounts import compute_account as compute_account
from rehearsal.cloud.iam.conditions import compile_condition
from rehearsal.cloud.iam.refusals import denied as denied
from rehearsal.cloud.iam.roles import by_role, check, grants

T = TypeVar("T")

TOKEN_LIFETIME_S = 3600.0

# projectOwner:P and its sisters stand for the members of these roles on the project.
_CONVENIENCE = {
    "projectOwner": "roles/owner",
    "projectEditor": "roles/editor",
    "projectViewer": "roles/viewer",
}
_PERMISSION = re.compile(r"[a-z]\w*\.\w+\.\w+")
_POD = re.compile(r"([^\[/]+\.svc\.id\.goog)\[([^/]+)/([^]]+)\]")
_MEMBER_KINDS = (
    *_CONVENIENCE, "user", "serviceAccount", "group", "domain", "deleted", "principal", "principalSet",
)  # fmt: skip


@dataclass(frozen=True)
class Token:
    """An access token, or with an `audience` an identity token for it.

    `expires_at` is on the world's real clock, as clients time it. `scopes` restrict nothing here but the
    account's address: who has no scope for it is a number to clusters.
    """

    value: str
    principal: str
    expires_at: float
    audience: str = ""
    scopes: tuple[str, ...] = LOGIN


@dataclass
class _Policy:
    """The versions of one resource's policy: (time from which it holds, policy), oldest first."""

    versions: list[tuple[float, JsonObject]] = field(default_factory=list)


class Iam:
    """Tokens, policies, custom roles, and decisions about access."""

    def __init__(
        self,
        world: World,
        owner: str,
        token_lifetime_s: float = TOKEN_LIFETIME_S,
        roles: Mapping[str, Iterable[tuple[str, str]]] | None = None,
    ) -> None:
        """`roles`: what the owner grants to whom, (role, resource), on each as soon as it is there."""
        self._world = world
        # By account, permission, and the (role, resource) pairs that each grant it; none: it was refused.
        self.access: Counter[tuple[str, str, tuple[tuple[str, str], ...]]] = Counter()
        self.project = f"projects/{world.project}"
        self._recorded = frozenset(roles or ())
        self._first: dict[str, list[JsonObject]] = {}
        for who, granted in (roles or {}).items():
            for role, resource in granted:
                binding = {"role": role, "members": [member(who)]}
                self._first.setdefault(resource, []).append(binding)
        self.token_lifetime_s = token_lifetime_s
        # Agents of Google's services that are there, and when what they are granted begins to count.
        self.agents: dict[str, float] = {}
        self.permissions: set[str] = set()  # permissions that some method requires
        self._tokens: dict[str, Token] = {}
        self._policies: dict[str, _Policy] = {}
        # Custom roles: permissions by the time from which they hold, oldest first.
        self._roles: dict[str, list[tuple[float, frozenset[str]]]] = {}
        self._etags = itertools.count(time.time_ns() // 1000)
        self.create(self.project, [{"role": "roles/owner", "members": [member(owner)]}])
        self.create(world.billing_account, [{"role": "roles/billing.admin", "members": [member(owner)]}])

    # Tokens

    def mint(
        self,
        principal: str,
        lifetime_s: float | None = None,
        audience: str = "",
        scopes: Iterable[str] = LOGIN,
    ) -> Token:
        """Create a token for this account; ApiError 404 if it is a deleted service account.

        It lives for `lifetime_s` real seconds, by default `token_lifetime_s`. With an audience it is an
        identity token, opaque here: the front door alone reads it.
        """
        if not self._exists(principal):
            raise not_found(f"projects/{self._world.project}/serviceAccounts/{principal}")
        ends = self._world.monotonic_s() + (self.token_lifetime_s if lifetime_s is None else lifetime_s)
        token = Token(f"ya29.{secrets.token_urlsafe(48)}", principal, ends, audience, tuple(scopes))
        self._tokens[token.value] = token
        return token

    def left_s(self, token: Token) -> int:
        """Return the remaining lifetime of a token in whole seconds."""
        return max(0, int(token.expires_at - self._world.monotonic_s()))

    def find_token(self, value: str, audience: str = "") -> Token | None:
        """Return the token of this value if it is valid, and for this audience."""
        token = self._tokens.get(value)
        if (
            token is None
            or token.audience != audience
            or token.expires_at <= self._world.monotonic_s()
            or not self._exists(token.principal)
        ):
            return None
        return token

    def _exists(self, principal: str) -> bool:
        if is_googles(principal) and principal.startswith(f"service-{self._world.number}@"):
            known = of_address(principal)
            unnamed = known and "channel" in known.made and self._is_new(principal)
            return principal in self.agents and not unnamed
        if not principal.endswith(f"@{self._world.project}.iam.gserviceaccount.com"):
            return True
        return self._world.find(f"projects/{self._world.project}/serviceAccounts/{principal}") is not None

    def _is_new(self, principal: str) -> bool:
        return self.agents.get(principal, float("-inf")) > self._world.clock.now()

    def make_agents(self, api: str, how: Made, lag_s: float | None = None) -> None:
        """Create the agents of an API that this makes, with the role that Google then grants them.

        What asks for an agent by `identity` grants its role itself. Their roles count after `lag_s`, by
        default `Lags.agent_s`. Until then one that comes with a channel can't be named either: nothing
        answers with its address.
        """
        since = self._world.clock.now() + (self._world.lags.agent_s if lag_s is None else lag_s)
        for name, known in AGENTS.items():
            email = known.email(self._world.number)
            if name.partition("-")[0] != api or how not in known.made or email in self.agents:
                continue
            self.agents[email] = since
            if how != "identity" and roles.of_role(known.role):  # agents of other roles do nothing here
                self._grant_at_once(known.role, member(email))

    def _grant_at_once(self, role: str, who: str) -> None:
        versions = self._policies[self.project].versions
        for _, policy in versions:
            policy["bindings"].append({"role": role, "members": [who]})
        versions[-1][1]["etag"] = self._etag()

    # Policies

    def create(self, resource: str, bindings: Iterable[JsonObject] = ()) -> JsonObject:
        """Give a new resource its first policy, which holds at once."""
        first = copy.deepcopy(self._first.get(resource, []))
        policy = {"version": 1, "etag": self._etag(), "bindings": [*bindings, *first]}
        self._policies[resource] = _Policy([(float("-inf"), policy)])
        return copy.deepcopy(policy)

    def create_bucket(self, bucket: str) -> JsonObject:
        """Set the first policy of `projects/_/buckets/B`: Google's grants to the project's basic roles."""
        project = self._world.project
        owners = [f"projectEditor:{project}", f"projectOwner:{project}"]
        viewers = [f"projectViewer:{project}"]
        bindings: list[JsonObject] = [
            {"role": "roles/storage.legacyBucketOwner", "members": owners},
            {"role": "roles/storage.legacyBucketReader", "members": viewers},
            {"role": "roles/storage.legacyObjectOwner", "members": owners},
            {"role": "roles/storage.legacyObjectReader", "members": viewers},
        ]
        return self.create(bucket, bindings)

    def drop(self, resource: str) -> None:
        """Forget the policies of a deleted resource and of all that is inside it."""
        for name in [name for name in self._policies if name == resource or name.startswith(f"{resource}/")]:
            del self._policies[name]

    def policy(self, resource: str) -> JsonObject:
        """Return the newest policy, also if it doesn't hold yet; an empty one for a resource without."""
        resource = self._canonical(resource)
        if resource not in self._policies:
            return self.create(resource)
        return copy.deepcopy(self._policies[resource].versions[-1][1])

    def existing(self, resource: str) -> JsonObject:
        """Return the newest policy of a resource, {} if it has none yet."""
        resource = self._canonical(resource)
        return self.policy(resource) if resource in self._policies else {}

    def shown(self, resource: str, version: int) -> JsonObject:
        """Return the newest policy in this version: before 3 without conditions, whose roles are renamed.

        https://cloud.google.com/iam/docs/troubleshooting-withcond
        """
        policy = self.policy(resource)
        if version not in (0, 1, 3):
            raise bad_request(f"Requested policy version {version} is invalid: it must be 0, 1 or 3.")
        if version == 3 or policy["version"] < 3:
            return policy
        for binding in policy["bindings"]:
            if condition := binding.pop("condition", None):
                digest = hashlib.sha256(repr(sorted(condition.items())).encode()).hexdigest()[:20]
                binding["role"] += f"_withcond_{digest}"
        return policy | {"version": 1}

    def set_policy(self, resource: str, policy: JsonObject) -> JsonObject:
        """Replace the policy if its etag (where given) is the newest one; holds after `Lags.grant_s`."""
        resource = self._canonical(resource)
        newest = self.policy(resource)
        if policy.get("etag") not in (None, "", newest["etag"]):
            raise ApiError(
                409,
                "ABORTED",
                "There were concurrent policy changes. Please retry the whole read-modify-write with "
                "exponential backoff. The request's ETag did not match the current policy's ETag.",
                reason="aborted",
            )
        bindings = [binding for binding in policy.get("bindings") or [] if binding.get("members")]
        conditional = any("condition" in binding for binding in bindings)
        version = policy.get("version") or 1
        if conditional and version != 3:
            raise bad_request("Policies with conditional role bindings must have version 3.")
        granted = {binding["role"] for binding in newest["bindings"]}
        for binding in bindings:
            self._check_binding(binding, granted)
        accepted: JsonObject = {
            "version": 3 if conditional else 1,
            "etag": self._etag(),
            "bindings": bindings,
        }
        if policy.get("auditConfigs"):
            accepted["auditConfigs"] = policy["auditConfigs"]
        accepted = copy.deepcopy(accepted)
        since = self._world.clock.now() + self._world.lags.grant_s
        self._policies[resource].versions.append((since, accepted))
        return copy.deepcopy(accepted)

    def _check_binding(self, binding: JsonObject, granted: set[str]) -> None:
        """Check a binding; `granted`: roles of the policy before, so that a deleted custom one may stay."""
        role = binding.get("role", "")
        custom = self._world.directory.get(role, {"deleted": True})
        if role.startswith("projects/") and custom.get("deleted") and role not in granted:
            raise bad_request(f"Role ({role}) does not exist in the resource's hierarchy.")
        if role.startswith("organizations/"):
            raise NotEmulatedError(f"A custom role of an organization ({role})")
        if not role.startswith("projects/"):
            check(role)
        if "condition" in binding:
            compile_condition(binding["condition"].get("expression", ""))
        for name in binding["members"]:
            kind, _, who = name.partition(":")
            if kind in ("user", "group", "domain"):
                constraints.require(self._world, "iam.allowedPolicyMemberDomains", [who.rpartition("@")[2]])
            if name in ("allUsers", "allAuthenticatedUsers"):
                continue
            if kind not in _MEMBER_KINDS or not who:
                raise bad_request(
                    f"The member {name} is of an unknown type. Please set a valid type prefix for the member."
                )
            if kind == "serviceAccount" and is_googles(who) and of_address(who) is None:
                raise NotEmulatedError(f"The service agent {who}")
            if kind == "serviceAccount" and not self._exists(who):
                raise bad_request(f"Service account {who} does not exist.")

    def forget_account(self, email: str, unique_id: str) -> None:
        """Mark a deleted service account in every policy, as Google does."""
        old, new = f"serviceAccount:{email}", f"deleted:serviceAccount:{email}?uid={unique_id}"
        for policy in self._policies.values():
            for _, version in policy.versions:
                for binding in version["bindings"]:
                    binding["members"] = [new if name == old else name for name in binding["members"]]

    # Custom roles

    def define_role(self, role: str, permissions: Iterable[str]) -> None:
        """Define a custom role, which holds after `Lags.grant_s`; a new one holds at once."""
        versions = self._roles.setdefault(role, [])
        since = self._world.clock.now() + self._world.lags.grant_s if versions else float("-inf")
        versions.append((since, frozenset(permissions)))

    def forget_role(self, role: str) -> None:
        """Remove a deleted role from every policy, as Google does."""
        del self._roles[role]
        for policy in self._policies.values():
            for _, version in policy.versions:
                version["bindings"] = [binding for binding in version["bindings"] if binding["role"] != role]

    def _grants(self, role: str, permission: str) -> bool:
        if role not in self._roles:
            return grants(role, permission)
        return permission in _holding(self._roles[role], self._world.clock.now())

    # Decisions

    def allowed(self, principal: str, permission: str, resource: str, list_prefix: str = "") -> bool:
        """Return True if the policies that hold now, on the resource or above it, grant the permission.

        `list_prefix`: what objects are listed by, for conditions.
        """
        return any(self._granting(principal, permission, resource, list_prefix))

    def require_grants(
        self, principal: str, permission: str, resource: str, before: JsonObject, after: JsonObject
    ) -> None:
        """Raise ApiError 403 unless the permission holds for the roles whose grants a change touches.

        https://cloud.google.com/iam/docs/setting-limits-on-granting-roles
        """
        pairs = (by_role(before), by_role(after))
        changed = frozenset(
            role for role in pairs[0].keys() | pairs[1].keys() if pairs[0].get(role) != pairs[1].get(role)
        )
        if next(self._granting(principal, permission, resource, "", changed), None) is None:
            raise denied(principal, permission, resource)

    def _granting(
        self,
        principal: str,
        permission: str,
        resource: str,
        list_prefix: str,
        changed: frozenset[str] = frozenset(),
    ) -> Iterator[tuple[str, str]]:
        """Yield each (role, resource that it is granted on) that gives the permission."""
        resource = self._canonical(resource)
        return (
            (binding["role"], name)
            for name in (() if self._is_new(principal) else self._ancestry(resource))
            for binding in self._effective(name)
            if self._grants(binding["role"], permission)
            and self._is_member(principal, binding["members"])
            and (
                "condition" not in binding
                or compile_condition(binding["condition"]["expression"])(resource, list_prefix, changed)
            )
        )

    def require(self, principal: str, permission: str, resource: str, list_prefix: str = "") -> None:
        """Raise ApiError 403, in its API's words, unless the principal has the permission."""
        if not self.holds(principal, permission, resource, list_prefix):
            raise denied(principal, permission, resource)

    def holds(self, principal: str, permission: str, resource: str, list_prefix: str = "") -> bool:
        """Decide as `allowed`, and record it; for services with refusals of their own."""
        granting = self._granting(principal, permission, resource, list_prefix)
        if principal not in self._recorded:
            return next(granting, None) is not None
        grants_held = tuple(sorted(set(granting)))
        self.access[principal, permission, grants_held] += 1
        return bool(grants_held)

    def require_use(self, principal: str, project: str) -> None:
        """Raise ApiError 403 unless the principal may have requests counted for a project.

        https://cloud.google.com/docs/quotas/quota-project#project-client-base
        """
        try:
            self.require(principal, "serviceusage.services.use", f"projects/{project}")
        except ApiError:
            text = (
                f"Caller does not have required permission to use project {project}. Grant the caller the "
                "roles/serviceusage.serviceUsageConsumer role, or a custom role with the "
                "serviceusage.services.use permission, by visiting "
                f"https://console.developers.google.com/iam-admin/iam/project?project={project} and then "
                "retry. Propagation of the new permission may take a few minutes."
            )
            raise ApiError(403, "PERMISSION_DENIED", text, reason="forbidden") from None

    def test(self, principal: str, permissions: Iterable[str], resource: str) -> list[str]:
        """Return the permissions that the principal has, for testIamPermissions.

        ApiError 400 for a text that can't be a permission; NotEmulatedError for one that no method needs.
        """
        permissions = list(permissions)
        for permission in permissions:
            if not _PERMISSION.fullmatch(permission):
                raise bad_request(f"Permission {permission} is not valid for this resource.")
            if roles.is_permission(permission) is False and permission not in self.permissions:
                raise bad_request(f"Permission {permission} is not valid for this resource.")
            if roles.is_permission(permission) is None:
                raise NotEmulatedError(f"Permission {permission}")
        return [permission for permission in permissions if self.allowed(principal, permission, resource)]

    def _effective(self, resource: str) -> list[JsonObject]:
        policy = self._policies.get(resource)
        if policy is None:
            return self._first.get(resource, [])
        bindings: list[JsonObject] = _holding(policy.versions, self._world.clock.now())["bindings"]
        return bindings

    def _is_member(self, principal: str, members: Iterable[str]) -> bool:
        for name in members:
            kind, _, who = name.partition(":")
            if name == member(principal) or name in ("allUsers", "allAuthenticatedUsers"):
                return True
            if kind == "principalSet" and _is_in(principal, who):
                return True
            # How policies named a Kubernetes account before there were principals.
            pod = _POD.fullmatch(who) if kind == "serviceAccount" else None
            if pod and principal.endswith("/{}/subject/ns/{}/sa/{}".format(*pod.groups())):
                return True
            if kind == "group" and self._in_group(principal, who):
                return True
            if kind == "domain" and principal.endswith(f"@{who}"):
                return True
            if kind in _CONVENIENCE and any(
                binding["role"] == _CONVENIENCE[kind] and member(principal) in binding["members"]
                for binding in self._effective(f"projects/{who}")
            ):
                return True
        return False

    def _in_group(self, principal: str, group: str, above: frozenset[str] = frozenset()) -> bool:
        """Return True if an account is a member of a group, or of one in it.

        https://cloud.google.com/iam/docs/groups-in-cloud-console
        """
        members = () if group in above else self._world.groups.get(group, ())
        return principal in members or any(
            self._in_group(principal, name, above | {group}) for name in members if name in self._world.groups
        )

    def _ancestry(self, resource: str) -> list[str]:
        """Return the resource, its parents, the project (not in a bucket's name), and its parents."""
        host, plain = "", resource
        if resource.startswith("//"):  # the name of one API's, where two have the same
            host, _, plain = resource[2:].partition("/")
        parts = plain.split("/")
        names = ["/".join(parts[:length]) for length in range(len(parts), 1, -1)]
        if names[-1] == "projects/_":
            names[-1] = f"projects/{self._world.project}"
        top = names[-1]
        names = [f"//{host}/{name}" for name in names] if host else names[:-1]
        while top:
            names.append(top)
            top = self._world.above.get(top, "")
        return names

    def _canonical(self, resource: str) -> str:
        number = f"projects/{self._world.number}"
        if resource == number or resource.startswith(f"{number}/"):
            return f"projects/{self._world.project}{resource[len(number) :]}"
        return resource

    def _etag(self) -> str:
        return base64.b64encode(next(self._etags).to_bytes(8, "big")).decode()


def _holding(versions: list[tuple[float, T]], now: float) -> T:
    """Return the version that holds now; drop older ones."""
    while len(versions) > 1 and versions[1][0] <= now:
        versions.pop(0)
    return versions[0][1]


def member(principal: str) -> str:
    """Return an account's e-mail address in the form of policies; a principal has it already."""
    if principal.startswith("principal://"):
        return principal
    kind = "serviceAccount" if principal.endswith(".gserviceaccount.com") else "user"
    return f"{kind}:{principal}"


def _is_in(principal: str, group: str) -> bool:
    """Return True if a pod's account is in `principalSet:GROUP`: a namespace's accounts, or all of a pool.

    https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity
    """
    pool, _, kind = group.partition("/workloadIdentityPools/")[2].partition("/")
    place = f"principal:{group.partition('/workloadIdentityPools/')[0]}/workloadIdentityPools/{pool}/subject/"
    namespace = f"ns/{kind.removeprefix('namespace/')}/" if kind.startswith("namespace/") else ""
    return principal.startswith(place + namespace) and (kind == "*" or bool(namespace))
