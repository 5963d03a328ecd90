"""An API that has just been enabled refuses for a while: "wait a few minutes for the action to propagate".

Neither Google's operation nor Pulumi's provider waits for that, so that whatever is declared next would fail.
https://cloud.google.com/service-usage/docs/enable-disable
"""

import logging
import os
import time
from collections.abc import Callable

from infra.google.failures import Kind

PATIENCE_S, POLL_S = 600.0, 1.0
_LOG = logging.getLogger(__name__)
# Service → product as the provider's variables for private endpoints name it, the usual base, and a list that
# is cheap to ask for. Those that layers declare resources of.
_PROBES = {
    "cloudkms.googleapis.com": ("KMS", "https://cloudkms.googleapis.com/v1/", "locations/global/keyRings"),
    "compute.googleapis.com": ("COMPUTE", "https://compute.googleapis.com/compute/v1/", "regions"),
    "iam.googleapis.com": ("IAM_BETA", "https://iam.googleapis.com/v1/", "serviceAccounts"),
    "tpu.googleapis.com": ("TPU_V2", "https://tpu.googleapis.com/v2/", "locations"),
}


def wait_until_it_answers(
    service: str,
    project: str,
    *,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once the API doesn't refuse as one that is off; at the latest after `patience_s`.

    Any other answer is as good: what is wrong besides, the resource that meets it says better.
    """
    if service not in _PROBES:
        return
    from infra.google.client import (  # here, so that no program waits for Google's libraries
        Client,
        RequestError,
    )

    product, base, path = _PROBES[service]
    url = f"{os.environ.get(f'GOOGLE_{product}_CUSTOM_ENDPOINT', base)}projects/{project}/{path}"
    client = Client(project)
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            client.send("GET", url)
        except RequestError as error:
            if error.failure.kind is Kind.API_OFF:
                _LOG.info("%s: enabled, but it refuses yet", service)
                sleep(POLL_S)
                continue
        return
