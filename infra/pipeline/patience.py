"""Asks again where Google's refusal says that a grant doesn't count yet.

A new project has no service agents, and roles take minutes to count. Google names that in its refusal, so
what needs them is asked for again while it does, instead of a wait of fixed length that is often too short.
https://cloud.google.com/eventarc/docs/troubleshooting,
https://cloud.google.com/iam/docs/access-change-propagation
"""

from __future__ import annotations

import re
import time

import pulumi

PATIENCE_S, PAUSE_S = 900.0, 5.0
_NOT_YET = re.compile(
    r"(?i)service agent|service account for cloud storage|pubsub\.(topics\.)?publish"
    r"|iam\.serviceaccounts\.actas"
)


class GrantPatience:
    """Says whether to ask again: while the refusal speaks of such a grant, for a quarter of an hour."""

    def __init__(self, patience_s: float = PATIENCE_S, pause_s: float = PAUSE_S):
        self._end_s: float | None = None
        self._patience_s, self._pause_s = patience_s, pause_s

    def __call__(self, args: pulumi.ErrorHookArgs) -> bool:
        """For `on_error` of a resource."""
        if args.failed_operation != "create" or not args.errors or not _NOT_YET.search(args.errors[0]):
            return False
        now_s = time.monotonic()
        self._end_s = self._end_s or now_s + self._patience_s
        if now_s >= self._end_s:
            return False
        pulumi.log.info(
            f"{args.name}: a role doesn't count yet, or is missing; asking again: {args.errors[0]}"
        )
        time.sleep(self._pause_s)
        return True


def asked_again(which: str) -> pulumi.ResourceHookBinding:
    """The hook of one resource, called after it."""
    return pulumi.ResourceHookBinding(on_error=[pulumi.ErrorHook(f"{which}-grants", GrantPatience())])
