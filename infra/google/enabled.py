"""An API that has just been enabled refuses for a while: "wait a few minutes for the action to propagate".

Neither Google's operation nor Pulumi's provider waits for that, so that whatever is declared next would fail.
https://cloud.google.com/service-usage/docs/enable-disable
"""

import os
import time
from collections.abc import Callable

from google_facts import lags
from infra.google.failures import Kind
from infra.google.waiting import wait

PATIENCE_S = lags.API.longest_s
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
    from infra.google.client import Client  # here, so that no program waits for Google's libraries

    product, base, path = _PROBES[service]
    url = f"{os.environ.get(f'GOOGLE_{product}_CUSTOM_ENDPOINT', base)}projects/{project}/{path}"
    client = Client(project)
    end = time.monotonic() + patience_s
    wait(lambda: client.send("GET", url), (Kind.API_OFF,), end, f"{service}, which is enabled", sleep)
