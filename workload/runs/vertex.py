"""A run's scalars in Vertex AI TensorBoard, by its REST API.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.tensorboards
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import google.auth
import requests
from google.auth import exceptions as auth
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from workload.errors import BoardError

MOST_POINTS = 5000
"""Of one request (WriteTensorboardRunDataRequest)."""
_TIMEOUT_S = 60.0
_LATER = (429, 500, 502, 503, 504)
# A step that is written again is overwritten, so every request may be sent again, for a minute.
_RETRY = Retry(
    total=6, backoff_factor=1, status_forcelist=_LATER, allowed_methods=None, raise_on_status=False
)
_ID = re.compile("[a-z0-9][a-z0-9-]{0,127}")
_ROLE = "roles/aiplatform.user"


@dataclass(frozen=True)
class Point:
    """One value of a curve; `time_s` since 1970."""

    step: int
    value: float
    time_s: float


class Board:
    """One run of an experiment of a TensorBoard; made where it isn't there."""

    def __init__(self, tensorboard: str, experiment: str, run: str):
        """`tensorboard`: projects/P/locations/L/tensorboards/T.

        Raises:
            BoardError: there are no credentials, or it is refused.
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
        # Without a display name a run isn't accepted, and two runs can't have the same.
        self._run = self._create(f"{parent}/runs", "tensorboardRunId", run, {})
        self._series: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Of the run, in full."""
        return self._run

    def write(self, curves: Mapping[str, Mapping[int, Point]]) -> None:
        """Points by curve and step, MOST_POINTS at most.

        Raises:
            BoardError: none was written.
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
        """The full name of what has that title, which is made where it isn't there."""
        id_ = id_of(title)
        self._post(collection, {"displayName": title, **body}, {parameter: id_})
        return f"{collection}/{id_}"

    def _post(self, name: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> None:
        try:
            answer = self._session.post(self._root + name, json=body, params=query, timeout=_TIMEOUT_S)
        except (requests.RequestException, auth.GoogleAuthError) as error:
            raise BoardError(f"{name}: no answer: {error}") from error
        if not answer.ok and not (query and answer.status_code == requests.codes.conflict):
            raise BoardError(f"{name}: {answer.status_code}: {_message(answer)}{_fix(answer.status_code)}")


def id_of(title: str) -> str:
    """An id of Vertex (1 to 128 of a-z, 0-9 and '-'), the title itself where that is one."""
    if _ID.fullmatch(title):
        return title
    plain = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
    return f"{plain[:100] or 'x'}-{hashlib.sha256(title.encode()).hexdigest()[:8]}"


def _value(point: Point) -> dict[str, Any]:
    number: float | str = point.value
    if not math.isfinite(point.value):  # JSON has none of these; so Protocol Buffers write them
        number = "NaN" if math.isnan(point.value) else f"{'-' if point.value < 0 else ''}Infinity"
    time = datetime.fromtimestamp(point.time_s, UTC).isoformat().replace("+00:00", "Z")
    return {"step": str(point.step), "wallTime": time, "scalar": {"value": number}}


def _message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (requests.JSONDecodeError, KeyError, TypeError):
        return answer.text[:200]


def _fix(status: int) -> str:
    fixes = {
        403: f"grant {_ROLE} on the project to the account that this runs as",
        404: "name a TensorBoard that is there: gcloud ai tensorboards list --region=LOCATION",
    }
    return f"\n    fix: {fixes[status]}" if status in fixes else ""
