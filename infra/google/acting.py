"""A grant that has just been made doesn't count for minutes: "2 minutes, potentially 7 minutes or longer".

Whatever runs as a new account is refused until whoever makes it may act as the account. Neither Google's
answer nor Pulumi's provider waits for that. https://cloud.google.com/iam/docs/access-change-propagation
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import pulumi

from google_facts import lags
from infra.google.failures import Kind
from infra.google.waiting import wait

PATIENCE_S = lags.GRANT.longest_s
PERMISSION = "iam.serviceAccounts.actAs"


def wait_until_it_may_act(
    project: str,
    accounts: Sequence[str],
    *,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once whoever is logged in may act as all of these addresses; at the latest after `patience_s`.

    What then is still refused, the resource that needs it says better. Without an answer, it returns.
    """
    from infra.google.client import (  # here, so that no program waits for Google's libraries
        Client,
        permissions_held,
    )

    base = os.environ.get("GOOGLE_IAM_BETA_CUSTOM_ENDPOINT", "https://iam.googleapis.com/v1/")
    client = Client(project)
    end = time.monotonic() + patience_s

    def may_act(account: str) -> object:
        return permissions_held(client, f"{base}projects/{project}/serviceAccounts/{account}", [PERMISSION])

    new = (Kind.MISSING, Kind.PERMISSION)
    for account in accounts:
        if not wait(partial(may_act, account), new, end, f"{PERMISSION} on {account}", sleep):
            return


def once_it_may_act(
    project: str, accounts: Sequence[str], users: Sequence[str]
) -> pulumi.ResourceHookBinding | None:
    """Return what a resource that runs as one of these addresses waits for before it is made.

    `users`: whom the program lets act as them; without any nothing is new, and nothing waits. A preview
    doesn't wait. To be called once in a program.
    """

    async def wait_for_it(_: pulumi.ResourceHookArgs) -> None:
        await asyncio.to_thread(wait_until_it_may_act, project, accounts)

    if not users:
        return None
    return pulumi.ResourceHookBinding(before_create=[pulumi.ResourceHook("may-act", wait_for_it)])
