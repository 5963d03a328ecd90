"""Client of Vertex AI TensorBoard's REST API for a run's scalars.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.tensorboards
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import google.auth
import requests
from google.auth import exceptions as auth
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from workload.errors import BoardError
from workload.runs.metrics import Point
from workload.runs.vertex_ids import id_of

MOST_POINTS = 5000
"""Limit of a request (WriteTensorboardRunDataRequest)."""
_TIMEOUT_S = 60.0
_LATER = (429, 500, 502, 503, 504)
# Writes are idempotent, so every request is retried, for a minute.
_RETRY = Retry(
    total=6, backoff_factor=1, status_forcelist=_LATER, allowed_methods=None, raise_on_status=False
)
_ROLE = "roles/aiplatform.user"


class Board:
    """Run of an experiment of a TensorBoard; created if it doesn't exist."""

    def __init__(self, tensorboard: str, experiment: str, run: str):
        """Create or open the run; `tensorboard` is projects/P/locations/L/tensorboards/T.

        Raises:
            BoardError: credentials are missing, or a request is refused.
        """
        try:
            credentials, _ = google.auth.default(["https://www.googleapis.com/auth/cloud-platform"])
        except auth.GoogleAuthError as error:
            fix = "run on a VM with a service account, or `gcloud auth application-default login`"
            raise BoardError(f"{tensorboard}: no credentials: {error}\n    fix: {fix}") from error
        location = tensorboard.split("/")[3]
        self._root = f"https://{location}-aiplatform.googleapis.com/v1/"
        self._session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        self._session.mount("https://", HTTPAdapter(max_retries=_RETRY))
        parent = self._create(f"{tensorboard}/experiments", "tensorboardExperimentId", experiment, {})
        # A run needs a display name, unique among runs.
        self._run = self._create(f"{parent}/runs", "tensorboardRunId", run, {})
        self._series: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Full name of the run."""
        return self._run

    def write(self, curves: Mapping[str, Mapping[int, Point]]) -> None:
        """Write points by curve and step, MOST_POINTS at most.

        Raises:
            BoardError: the request failed; no point was written.
        """
        for curve in curves.keys() - self._series.keys():
            kind = {"valueType": "SCALAR", "pluginName": "scalars"}
            name = self._create(f"{self._run}/timeSeries", "tensorboardTimeSeriesId", curve, kind)
            self._series[curve] = name.rpartition("/")[2]
        data = [
            {
                "tensorboardTimeSeriesId": self._series[curve],
                "valueType": "SCALAR",
                "values": [_value(point) for point in points.values()],
            }
            for curve, points in curves.items()
        ]
        self._post(f"{self._run}:write", {"tensorboardRun": self._run, "timeSeriesData": data})

    def _create(self, collection: str, parameter: str, title: str, body: Mapping[str, Any]) -> str:
        """Create a resource if it doesn't exist; return its full name."""
        id_ = id_of(title)
        self._post(collection, {"displayName": title, **body}, {parameter: id_})
        return f"{collection}/{id_}"

    def _post(self, name: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> None:
        try:
            response = self._session.post(self._root + name, json=body, params=query, timeout=_TIMEOUT_S)
        except (requests.RequestException, auth.GoogleAuthError) as error:
            raise BoardError(f"{name}: no answer: {error}") from error
        if not response.ok and not (query and response.status_code == requests.codes.conflict):
            status = response.status_code
            raise BoardError(f"{name}: {status}: {_message(response)}{_fix(status)}")


def _value(point: Point) -> dict[str, Any]:
    number: float | str = point.value
    if not math.isfinite(point.value):  # as Protocol Buffers' JSON spells them
        number = "NaN" if math.isnan(point.value) else f"{'-' if point.value < 0 else ''}Infinity"
    time = datetime.fromtimestamp(point.time_s, UTC).isoformat().replace("+00:00", "Z")
    return {"step": str(point.step), "wallTime": time, "scalar": {"value": number}}


def _message(response: requests.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (requests.JSONDecodeError, KeyError, TypeError):
        return response.text[:200]


def _fix(status: int) -> str:
    fixes = {
        403: f"grant {_ROLE} on the project to this host's account",
        404: "name an existing TensorBoard: gcloud ai tensorboards list --region=LOCATION",
    }
    return f"\n    fix: {fixes[status]}" if status in fixes else ""
