"""A metric of logs that has just been made is unknown to Cloud Monitoring, which refuses alerts on it.

"If a metric was created recently, it could take up to 10 minutes to become available", with 404. Pulumi's
provider doesn't wait for that. https://github.com/hashicorp/terraform-provider-google/issues/11102
"""

import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from google_facts import lags
from infra.google.failures import Kind
from infra.google.waiting import wait

PATIENCE_S = lags.METRIC.longest_s
UNKNOWN = r"Cannot find metric\(s\) that match type"
"""Google's words."""


def wait_until_it_is_known(
    metrics: Iterable[str],
    project: str,
    *,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once Monitoring knows all of these types of metrics; at the latest after `patience_s`."""
    from infra.google.client import Client  # here, so that no program waits for Google's libraries

    base = os.environ.get("GOOGLE_MONITORING_CUSTOM_ENDPOINT", "https://monitoring.googleapis.com/")
    client = Client(project)
    end = time.monotonic() + patience_s
    for metric in metrics:
        url = f"{base}v3/projects/{project}/metricDescriptors/{metric}"
        if not wait(partial(client.send, "GET", url), (Kind.MISSING,), end, metric, sleep):
            return
