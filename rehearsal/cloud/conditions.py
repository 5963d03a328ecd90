"""The part of IAM's condition language that the emulated cloud evaluates.

Source: https://cloud.google.com/iam/docs/conditions-overview. Comparisons and `startsWith`/`endsWith` on
`resource.name`, `resource.type` and `resource.service`, joined by `&&` or by `||`. Anything else is refused
when the policy is set, because a condition that is stored and not evaluated grants too much or too little.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from rehearsal.cloud.service import bad_request

Condition = Callable[[str], bool]

_CALL = re.compile(r"(!?)\s*resource\.name\.(startsWith|endsWith)\(\s*(['\"])(.*?)\3\s*\)")
_COMPARISON = re.compile(r"resource\.(name|type|service)\s*(==|!=)\s*(['\"])(.*?)\3")


@lru_cache(maxsize=256)
def compile_condition(expression: str) -> Condition:
    """A test of the full resource name (`projects/_/buckets/B/objects/O`); ApiError 400 if unsupported."""
    if "||" in expression:
        alternatives = [compile_condition(part) for part in expression.split("||")]
        return lambda name: any(test(name) for test in alternatives)
    if "&&" in expression:
        requirements = [compile_condition(part) for part in expression.split("&&")]
        return lambda name: all(test(name) for test in requirements)
    text = expression.strip()
    if call := _CALL.fullmatch(text):
        negated, method, _, value = call.groups()
        if method == "startsWith":
            return lambda name: name.startswith(value) != bool(negated)
        return lambda name: name.endswith(value) != bool(negated)
    if comparison := _COMPARISON.fullmatch(text):
        attribute, operator, _, value = comparison.groups()
        return lambda name: (_attribute(attribute, name) == value) == (operator == "==")
    raise bad_request(
        f"Condition expression compilation failed: `{expression}` is outside of what the emulated IAM "
        "evaluates: comparisons and startsWith/endsWith of resource.name, resource.type and "
        "resource.service, joined by && or by ||."
    )


def _attribute(attribute: str, name: str) -> str:
    if attribute == "name":
        return name
    service = "storage" if name.startswith("projects/_/") else "cloudresourcemanager"
    if attribute == "service":
        return f"{service}.googleapis.com"
    kind = ("Object" if "/objects/" in name else "Bucket") if service == "storage" else "Project"
    return f"{service}.googleapis.com/{kind}"
