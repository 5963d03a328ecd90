"""A grant that has just been made doesn't count for minutes: "2 minutes, potentially 7 minutes or longer".

Whatever runs as a new account is refused until whoever makes it may act as the account. Neither Google's
answer nor Pulumi's provider waits for that. https://cloud.google.com/iam/docs/access-change-propagation
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence

from infra.google.failures import Kind

PATIENCE_S, POLL_S = 420.0, 1.0
PERMISSION = "iam.serviceAccounts.actAs"
_LOG = logging.getLogger(__name__)


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
        RequestError,
    )

    base = os.environ.get("GOOGLE_IAM_BETA_CUSTOM_ENDPOINT", "https://iam.googleapis.com/v1/")
    client = Client(project)
    end = time.monotonic() + patience_s
    for account in accounts:
        url = f"{base}projects/{project}/serviceAccounts/{account}:testIamPermissions"
        while time.monotonic() < end:
            try:
                if client.json("POST", url, body={"permissions": [PERMISSION]}).get("permissions"):
                    break
            except RequestError as error:
                if error.failure.kind not in (Kind.MISSING, Kind.PERMISSION):  # or new
                    return
            _LOG.info("%s: waiting for %s", account, PERMISSION)
            sleep(POLL_S)
