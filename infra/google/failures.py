"""Classification of failed requests: each kind has its own consequence, and only a 404 means "gone".

Google's words come three ways: the answer to a request, the end of an operation, and the provider's
sentence about either, which holds their number (`Error 429`, `Error code 8`) and their text. Texts that
tests hold were reported by users of the TPU API: hashicorp/terraform-provider-google#21243,
marin-community/marin#1612, #87 and #6198, skypilot-org/skypilot#4579.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from google_facts import constraints, lags

ROLE_WITH = "a role that holds {}"
"""Phrase of a fix, with the permission; infra/engine/roles.py replaces it by a role's name."""


class Kind(StrEnum):
    """Kind of failure, by its consequence for the caller."""

    STOCK_OUT = "stock-out"  # no chips in the zone now: later, or in another zone
    QUOTA = "quota"  # the project's limit is reached: a user must act
    PERMISSION = "permission"  # the account lacks a permission: a user must act
    LOGIN = "login"  # no valid login: a user must act
    POLICY = "organization policy"  # the organization forbids it: its administrator must act
    API_OFF = "api off"  # the project hasn't enabled the API: a user must act
    INVALID = "invalid"  # the request can never succeed: a user must act
    MISSING = "missing"  # it doesn't exist
    EXISTS = "exists"  # it exists already
    RATE = "rate"  # too many requests: slow down
    TRANSIENT = "transient"  # Google's fault: retry later
    STACK = "stack"  # the whole update failed, without an error on this resource
    UNKNOWN = "unknown"  # outcome unknown: observe again


# The numbers that operations end with: google.rpc.Code. 9, FAILED_PRECONDITION, and 10, ABORTED, have no
# meaning of their own: something else continues with the node, and it is looked at again.
_HTTP_OF_RPC = {3: 400, 5: 404, 6: 409, 7: 403, 8: 429, 11: 400, 12: 501, 13: 500, 14: 503, 16: 401}
_OF_STATUS = {
    400: Kind.INVALID, 401: Kind.LOGIN, 403: Kind.PERMISSION, 404: Kind.MISSING, 409: Kind.TRANSIENT,
    412: Kind.INVALID, 422: Kind.INVALID, 429: Kind.RATE, 501: Kind.INVALID,
}  # fmt: skip
_NO_QUOTA_PROJECT = "requires a quota project"
_SET_QUOTA_PROJECT = "gcloud auth application-default set-quota-project PROJECT, that of gcp:project"
# What the text says counts before the number: Google gives 429 and 8 to three different things. In order.
_OF_TEXT: tuple[tuple[str, Kind], ...] = (
    # Of a login without one, with the reason SERVICE_DISABLED: the API that is off is another project's.
    (_NO_QUOTA_PROJECT, Kind.LOGIN),
    (r"has not been used in project|SERVICE_DISABLED|accessNotConfigured|it is disabled", Kind.API_OFF),
    (r"no more capacity|insufficient (reserved )?capacity|resources available to fulfill", Kind.STOCK_OUT),
    (r"ZONE_RESOURCE_POOL_EXHAUSTED|stockout|currently unavailable in the", Kind.STOCK_OUT),
    (r"requests per (minute|second|day)", Kind.RATE),
    # Before the reason that Google adds to any 429, rateLimitExceeded.
    (r"quota (limit )?'[^']+'", Kind.QUOTA),
    (r"rate ?limit|RATE_LIMIT_EXCEEDED", Kind.RATE),
    (r"quota exceeded|QUOTA_EXCEEDED|quotaExceeded", Kind.QUOTA),
    (r"insufficient ['\w ]*quota", Kind.QUOTA),  # GKE's and Dataproc's, with 403
    (r"due to quota restrictions", Kind.QUOTA),  # Cloud Build's, with FAILED_PRECONDITION
    (r"already exists", Kind.EXISTS),
    # Something else continues with the node, such as the deletion whose answer was lost.
    (r"failedPrecondition|FAILED_PRECONDITION|\bis (DELETING|CREATING|STOPPING|STARTING)", Kind.TRANSIENT),
    (r"invalid_grant|could not find default credentials|reauth|UNAUTHENTICATED", Kind.LOGIN),
    (r"LOCATION_POLICY_VIOLATED|permission '?[\w.]+'? denied|PERMISSION_DENIED", Kind.PERMISSION),
    (r"required '[\w.]+' permission", Kind.PERMISSION),
    (r"4033: 'not authorized'|permission denied (\(publickey|to enable service)", Kind.PERMISSION),
    (r"connection (reset|refused|aborted)|unexpected EOF|\bEOF\b|broken pipe|no such host", Kind.UNKNOWN),
    (r"timed? ?out|timeout while waiting|deadline exceeded", Kind.UNKNOWN),
)
# As Cloud TPU and IAM say it, as Cloud Storage does, and as Compute Engine does.
_LACKED = (
    r"(?:permission '?|does not have |required '|with the )([a-z]\w*\.[\w.]+\w)"
    r"(?:'? denied| access|'? permission)"
)
# Refusals that don't name the permission: SSH's by its tunnel (https://cloud.google.com/iap/docs/faq) and by
# the host, and Service Usage's (https://github.com/GoogleCloudPlatform/cloud-foundation-fabric/issues/2985).
_UNNAMED = {
    "4033": "iap.tunnelInstances.accessViaIAP", "(publickey": "compute.instances.osLogin",
    "denied to enable service": "serviceusage.services.enable",
}  # fmt: skip
# What a refusal is about: the one that is off, those that may not be enabled, the one that may not be used.
_SERVICE = re.compile(r"(?:api/|enable service \[|use service ')([a-z][\w-]*\.googleapis\.com)")
_ENABLE = "gcloud services enable {} --project=PROJECT"
_QUOTA = r"""(?:quota (?:limit )?'|insufficient '|quota to satisfy request: resource ")([^'"]+)"""
_NAMED = {Kind.QUOTA: _QUOTA, Kind.PERMISSION: _LACKED}
_FIXES = {
    Kind.STOCK_OUT: "nothing: it is retried; `fallbackZones`, or another zone, helps",
    Kind.QUOTA: "request more (console: IAM & Admin > Quotas), or lower count",
    Kind.PERMISSION: f"grant your account {ROLE_WITH.format('the permission')}; "
    f"a grant takes up to {lags.GRANT.longest_s / 60:.0f} min: then run the command again",
    Kind.POLICY: "an administrator (roles/orgpolicy.policyAdmin) must exempt the project",
    Kind.LOGIN: "gcloud auth application-default login",
    Kind.API_OFF: "tpu up ENV storage, which enables the APIs, and wait some minutes",
    Kind.INVALID: "correct the settings; a retry won't help",
    Kind.MISSING: "nothing: it is created again",
    Kind.EXISTS: "nothing if this stack owns it; else delete it, or rename the slice",
    Kind.RATE: "nothing: it is retried, more slowly",
    Kind.TRANSIENT: "nothing: it is retried",
    Kind.STACK: "follow Pulumi's message, if any; it is retried in a minute",
    Kind.UNKNOWN: "nothing: it is observed again before anything is done",
}
OF_ONE = frozenset({Kind.INVALID, Kind.EXISTS})
"""Failures of one node's request, which tell nothing about other nodes."""
FOR_PEOPLE = frozenset({Kind.QUOTA, Kind.PERMISSION, Kind.POLICY, Kind.LOGIN, Kind.API_OFF, Kind.INVALID})
"""Non-retryable failures: a user must act first."""


@dataclass(frozen=True)
class Failure:
    """A failed request or operation.

    Attributes:
        kind: what it means.
        message: Google's words, or the client's.
        about: which quota, permission or constraint; empty where the words name none.
        retry_after_s: how long Google asked to wait; None where it didn't.
    """

    kind: Kind
    message: str
    about: str = ""
    retry_after_s: float | None = None

    @property
    def fix(self) -> str:
        """Advice to the user."""
        services = " ".join(dict.fromkeys(_SERVICE.findall(self.message)))
        if self.kind is Kind.POLICY:
            needs = constraints.block(self.about).get("needs")
            show = f"gcloud org-policies describe {self.about} --effective --project=PROJECT"
            allows = f"{fix_of(self.kind)} for {services}" if services else fix_of(self.kind)
            return f"{allows}; {show}{f' ({needs})' if needs else ''}"
        if self.kind is Kind.API_OFF and services:
            return f"{fix_of(self.kind)}; where storage is up already: {_ENABLE.format(services)}"
        if self.kind is Kind.QUOTA and re.search(r"[Ll]imit:? 0\b", self.message):
            return "ask for some: the project has none yet (console: IAM & Admin > Quotas; days, for TPUs)"
        fix = _SET_QUOTA_PROJECT if _NO_QUOTA_PROJECT in self.message else fix_of(self.kind)
        if self.kind is Kind.PERMISSION and self.about:
            fix = fix.replace(ROLE_WITH.format("the permission"), ROLE_WITH.format(self.about))
        if self.kind is Kind.PERMISSION and services:
            return f"an owner runs: {_ENABLE.format(services)}; or {fix}"
        return fix

    def __str__(self) -> str:
        about = f" {self.about}" if self.about else ""
        return f"{self.kind}{about}: {self.message}\n    fix: {self.fix}"


def fix_of(kind: Kind) -> str:
    """Return the advice on a kind of failure."""
    return _FIXES[kind]


def classify(message: str, status: int | None = None, retry_after_s: float | None = None) -> Failure:
    """Classify a failure.

    Args:
        message: all that was said.
        status: of the HTTP answer; None where none came, or only a sentence about it did.
        retry_after_s: the answer's Retry-After.
    """
    if status is None:
        status = _number_in(message)
    if constraint := constraints.violated(message):
        return Failure(Kind.POLICY, message.strip(), constraint, retry_after_s)
    kind = next((kind for text, kind in _OF_TEXT if re.search(text, message, re.IGNORECASE)), None)
    if kind is None or (status == 404 and kind is not Kind.API_OFF):
        kind = _of_status(status)
    named = re.search(_NAMED[kind], message, re.IGNORECASE) if kind in _NAMED else None
    unnamed = next(
        (permission for text, permission in _UNNAMED.items() if kind is Kind.PERMISSION and text in message),
        "",
    )
    return Failure(kind, message.strip(), named[1] if named else unnamed, retry_after_s)


def _of_status(status: int | None) -> Kind:
    if status is None:
        return Kind.UNKNOWN
    return _OF_STATUS.get(status, Kind.TRANSIENT if status >= 500 else Kind.UNKNOWN)


def _number_in(message: str) -> int | None:
    """Parse the HTTP status in a provider's sentence, or that of an operation's error code."""
    if named := re.search(r"\bError code (\d+), message", message):
        return _HTTP_OF_RPC.get(int(named[1]))
    named = re.search(r"(?:googleapi: |HTTP )?\bError (\d{3})\b", message)
    return int(named[1]) if named else None
