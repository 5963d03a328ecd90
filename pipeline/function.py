"""Entry of the function at Google: an event of the raw bucket, or the sweep of Cloud Scheduler."""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Protocol

from fleet.environment import google_of
from infra.engine.named import read_stack
from infra.engine.settings import from_file
from infra.google.client import Client
from infra.layers.pipeline import paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from pipeline.slices import SliceTrainer
from pipeline.sweep import Sweep
from pipeline.training import JobSetTrainer, Trainer, VertexTrainer

_FINALIZED = "google.cloud.storage.object.v1.finalized"
# The second is for a connection that was closed while the instance slept; all else is left to the next sweep.
_TRIES = 2
_SEVERITIES = {logging.WARNING: "WARNING", logging.ERROR: "ERROR", logging.CRITICAL: "CRITICAL"}


class Request(Protocol):
    """The used part of Flask's request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers; of an event in binary mode, its attributes."""
        ...

    def get_json(self, *, silent: bool) -> Any:
        """Return the body; None if it isn't JSON."""
        ...


class _Clock:
    """Clock of an instance, never behind the time for which Google has made the request that it serves."""

    def __init__(self) -> None:
        self.request_s = 0.0

    def __call__(self) -> float:
        return max(time.time(), self.request_s)


_CLOCK = _Clock()


def _time_of(request: Request) -> float:
    """Return the time of an event or of a scheduled call in seconds since 1970; 0 if it has none."""
    sent = request.headers.get("Ce-Time") or request.headers.get("X-CloudScheduler-ScheduleTime") or ""
    try:
        return datetime.fromisoformat(sent).timestamp()
    except ValueError:
        return 0.0


def handle(request: Request) -> tuple[dict[str, Any], int]:
    """Return the answer of the function.

    An event's run is claimed and advanced; {"sweep": true} advances every run. A call that fails is repeated,
    and what it left undone is done by the next sweep.
    """
    _log_to_stdout()
    _CLOCK.request_s = _time_of(request)
    body = request.get_json(silent=True)
    if not isinstance(body, dict):
        return {"error": "the body must be a JSON object"}, 400
    sweep = _sweep()
    if request.headers.get("Ce-Type") == _FINALIZED:
        name, generation = str(body.get("name", "")), str(body.get("generation", ""))
        return sweep.submitted(str(body.get("bucket", "")), name, generation), 200
    if body.get("sweep") is True:
        faults = sweep.sweep()
        return {"outcome": "swept", "faults": faults}, 200
    return {"error": 'the body must be {"sweep": true} or an event of the raw bucket'}, 400


@cache
def _sweep() -> Sweep:
    """Return the sweep of the environment, one for each instance of the function."""
    settings = from_file(os.environ[paths.ENVIRONMENT])
    client = Client(settings.project, tries=_TRIES)
    return Sweep(settings, client, trainer_of(settings, client), _CLOCK)


def trainer_of(settings: Settings, client: Client) -> Trainer | None:
    """Return the trainer that the settings choose, by the function's environment variables; None: none."""
    match settings[PipelineSettings].train:
        case "fleet":
            return SliceTrainer(settings, google_of(settings), read_stack(settings.environment).id)
        case "jobset":
            return JobSetTrainer(settings, client, os.environ[paths.CLUSTER_ENDPOINT])
        case "vertex":
            return VertexTrainer(settings, client)
    return None


class _Lines(logging.Formatter):
    """Structured lines, as Cloud Logging parses them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        fields = getattr(record, "fields", {})
        text = super().format(record)
        return json.dumps({"severity": _SEVERITIES.get(record.levelno, "INFO"), "message": text, **fields})


@cache
def _log_to_stdout() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Lines())
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
