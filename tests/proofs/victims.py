"""Commands that make or end something, each in a process of its own that may be killed at any request.

python -m tests.proofs.victims PORT: everything is imported once, each command is a fork. It reads JSON lines,
`["fleet", "create", …]`; see `forks`. All of Google's names, and that of the cluster, lead to the port.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import google.auth
import requests
from google.oauth2.credentials import Credentials
from requests.adapters import HTTPAdapter

from cli import job as job_command
from cli import pipeline as pipeline_command
from cli import run as run_command
from cli.__main__ import main as tpu
from fleet import environment, owned, recovery, removal, supervise
from fleet.ending import take_down_ended
from fleet.environment import google_of, opened
from fleet.request import FleetCommand
from fleet.supervise import Supervisor
from infra.engine.named import StackState
from infra.errors import InfraError
from infra.google import client
from infra.google.client import Client
from infra.google.kubernetes import Cluster
from infra.layers.builds import render, running
from infra.layers.queue.jobs.client import Jobs
from infra.layers.queue.kueue import Team
from infra.prices.run import RunPrice
from infra.publish.bundle import assemble
from infra.publish.upload import upload
from infra.settings.schema import Settings
from pipeline.record import Run
from pipeline.slices import SliceTrainer
from tests.fleet.lab import BUCKET, BUNDLE, CONFIG, PROJECT, STACK
from tests.infra.layers.builds.test_builds_layer import GIVEN
from tests.infra.layers.pipeline.test_pipeline_layer import FLEET
from tests.infra.layers.pipeline.test_pipeline_layer import settings as of_pipeline
from tests.infra.layers.queue.test_submission import settings as of_queue
from tests.infra.recording import BASE, parsed
from tests.proofs.forks import serve

CLUSTER, ZONE = "cluster.example", "us-east5-b"
PIPELINE = {"gcp:project": PROJECT, "storage:bucketName": BUCKET, "pipeline:code": "ab" * 32}
_SEND = HTTPAdapter.send


def _from_file(_: str, root: object = None, slices: Sequence[Mapping[str, Any]] = ()) -> Settings:
    config = {**CONFIG, "tpu:slices": [*slices], "tpu:zones": [ZONE]}
    return parsed(config)


def _run(name: str) -> int:
    """`tpu run --detach`, once its bundle is published."""
    item = {
        "name": name, "acceleratorType": "v6e-8", "zones": [ZONE], "count": 1, "spot": True,
        "run": "python train.py", "bundle": BUNDLE, "checkpointFolder": f"jobs/{name}", "stopWhenDone": True,
    }  # fmt: skip
    supervisor = Supervisor("dev", item, print)
    supervisor.require_free(replace=False)
    job = run_command.Job("dev", supervisor, RunPrice(None, None), sys.stdout)
    try:
        return job.start(detach=True)
    finally:
        supervisor.leave()


def _monitor() -> int:
    """Look as `tpu fleet monitor` does, until nothing is left to do."""
    controller = None
    try:
        while True:
            fleet = opened(FleetCommand("dev"), allow_empty=True)
            controller = controller or fleet.controller(lead=True)
            fleet.follow(controller)
            observation = controller.step()
            take_down_ended(fleet, controller, observation)
            if not controller.busy and not observation.begun and not fleet.saved.read():
                return 0
            time.sleep(0.05)
    finally:
        if controller:
            controller.leave()


def _sweep(name: str) -> int:
    """Start a run's training as the pipeline's function does, and keep its slice."""
    known = of_pipeline(FLEET, **PIPELINE)
    run = Run(name, f"gs://my-project-raw/{name}/", "", 0.0, folder=f"tokens/{name}/x")
    trainer = SliceTrainer(known, google_of(known), STACK)
    trainer.start(run)
    trainer.keep(print)
    return 0


def _submit_build(kind: str) -> int:
    values = {**BASE, **GIVEN, "gcp:project": PROJECT}
    known = parsed(values)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Pulumi.dev.yaml").write_text("config: {}\n")
        print(running.start(known, render.build(known, kind), Path(folder), Client(PROJECT), None))
    return 0


def _publish() -> int:
    with tempfile.TemporaryDirectory() as folder:
        names = [f"file-{number}" for number in range(4)]
        for name in names:
            (Path(folder) / name).write_text(f"content of {name}")
        upload(assemble({name: Path(folder) / name for name in names}), BUCKET, lambda *_: None)
    return 0


_COMMANDS: dict[str, Callable[..., int]] = {
    "run": _run, "monitor": _monitor, "sweep": _sweep, "builds": _submit_build, "publish": _publish,
}  # fmt: skip


def act(words: Sequence[str]) -> int:
    """Run a command; return its exit status."""
    if words[0] not in _COMMANDS:
        return tpu(words)
    try:
        return _COMMANDS[words[0]](*words[1:])
    except InfraError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _enter(port: str, token: str) -> None:
    """Lead all requests of this process and of its forks to a port, and replace what isn't Google."""

    def send(adapter: HTTPAdapter, request: requests.PreparedRequest, *arguments: Any, **more: Any) -> Any:
        parts = urlsplit(str(request.url))
        if parts.scheme == "https":
            request.headers["Host"] = parts.netloc
            request.url = parts._replace(scheme="http", netloc=f"127.0.0.1:{port}").geturl()
        return _SEND(adapter, request, *arguments, **more)

    def of_team(known: Settings, team: Team) -> Jobs:
        return Jobs(Cluster(Client(PROJECT), CLUSTER), team, known.environment)

    class Silent:
        def since(self, _: str) -> list[dict[str, str]]:
            return []

    os.environ["GOOGLE_OAUTH_ACCESS_TOKEN"] = token
    replaced: list[tuple[Any, str, Any]] = [
        (HTTPAdapter, "send", send),
        (google.auth, "default", lambda *_, **__: (Credentials(token), PROJECT)),  # type: ignore[no-untyped-call]
        *((module, "from_file", _from_file) for module in (environment, supervise, owned)),
        *((module, "read_stack", lambda _: StackState(STACK, {})) for module in (environment, supervise)),
        (pipeline_command, "from_file", lambda _: of_pipeline(**PIPELINE)),
        (job_command, "from_file", lambda _: of_queue(**{"gcp:project": PROJECT})),
        (job_command, "_jobs", of_team), (run_command, "_entries", lambda *_: Silent()),
        *((module, "_POLL_S", 0.05) for module in (recovery, removal, owned, run_command)),
        (run_command, "_LOOK_S", 0.0), (client, "_PAUSE_S", 0.01),
    ]  # fmt: skip
    for module, name, value in replaced:
        mock.patch.object(module, name, value).start()


if __name__ == "__main__":
    _enter(sys.argv[1], sys.argv[2])
    serve(act)
