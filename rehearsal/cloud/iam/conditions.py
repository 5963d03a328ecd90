"""The part of IAM's condition language that the emulated cloud evaluates.

Source: https://cloud.google.com/iam/docs/conditions-attribute-reference. Comparisons on `resource.name`,
`resource.type` and `resource.service`, `startsWith`/`endsWith` on the name and on the API attribute
`objectListPrefix` (the prefix that objects are listed by; empty for any other request), `hasOnly` on the API
attribute `modifiedGrantsByRole` (the roles whose members a setIamPolicy changes; none for any other request),
joined by `&&` or by `||`. Anything else is refused as not emulated when the policy is set, because a
condition that is stored and not evaluated grants too much or too little.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from rehearsal.cloud.core.errors import NotEmulatedError, bad_request

Condition = Callable[[str, str, frozenset[str]], bool]

_PREFIX = r"api\.getAttribute\(\s*(['\"])storage\.googleapis\.com/objectListPrefix\3\s*,\s*(?:''|\"\")\s*\)"
_CALL = re.compile(rf"(!?)\s*(resource\.name|{_PREFIX})\.(startsWith|endsWith)\(\s*(['\"])(.*?)\5\s*\)")
_GRANTS = re.compile(
    r"api\.getAttribute\(\s*(['\"])iam\.googleapis\.com/modifiedGrantsByRole\1\s*,\s*\[\]\s*\)"
    r"\.hasOnly\(\s*\[(.*?)\]\s*\)"
)
_MOST_ROLES = 10  # https://cloud.google.com/iam/docs/setting-limits-on-granting-roles
_COMPARISON = re.compile(r"resource\.(name|type|service)\s*(==|!=)\s*(['\"])(.*?)\3")


@lru_cache(maxsize=256)
def compile_condition(expression: str) -> Condition:
    """Compile a condition; NotEmulatedError if unsupported.

    Its arguments are the full resource name (`projects/_/buckets/B/objects/O`), the prefix of a listing, and
    the roles whose grants are changed.
    """
    if "||" in expression:
        alternatives = [compile_condition(part) for part in expression.split("||")]
        return lambda *about: any(test(*about) for test in alternatives)
    if "&&" in expression:
        requirements = [compile_condition(part) for part in expression.split("&&")]
        return lambda *about: all(test(*about) for test in requirements)
    text = expression.strip()
    if call := _CALL.fullmatch(text):
        negated, subject, _, method, _, value = call.groups()
        of_name = subject == "resource.name"
        test = str.startswith if method == "startsWith" else str.endswith
        return lambda name, prefix, _: test(name if of_name else prefix, value) != bool(negated)
    if granting := _GRANTS.fullmatch(text):
        roles = frozenset(re.findall(r"['\"](.*?)['\"]", granting[2]))
        if len(roles) > _MOST_ROLES:
            raise bad_request(f"hasOnly takes {_MOST_ROLES} roles at most, and there are {len(roles)}.")
        return lambda _name, _prefix, changed: changed <= roles
    if comparison := _COMPARISON.fullmatch(text):
        attribute, operator, _, value = comparison.groups()
        return lambda name, _prefix, _changed: (_attribute(attribute, name) == value) == (operator == "==")
    raise NotEmulatedError(f"The condition `{expression}`")


def _attribute(attribute: str, name: str) -> str:
    if attribute == "name":
        return name
    service = "storage" if name.startswith("projects/_/") else "cloudresourcemanager"
    if attribute == "service":
        return f"{service}.googleapis.com"
    kind = ("Object" if "/objects/" in name else "Bucket") if service == "storage" else "Project"
    return f"{service}.googleapis.com/{kind}"
