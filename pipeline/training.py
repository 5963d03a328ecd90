"""Training on a run's shards: a JobSet of the queue, or a custom job of Vertex AI; a slice is in slices.py.

Each is named after the run, so that it is started once however often that is requested.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from infra.catalog import CATALOG
from infra.google.client import Client, RequestError, about
from infra.google.failures import Kind
from infra.google.kubernetes import Cluster
from infra.layers.pipeline import handoff, paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.queue.jobs import reasons
from infra.layers.queue.jobs.jobset import API, jobset
from infra.layers.queue.jobs.submission import JobRequest, submission
from infra.layers.queue.team import teams
from infra.layers.storage.names import service_account_email
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from pipeline.decide import Progress, Training
from pipeline.record import Run

_GCSFUSE = "/gcs"  # where a custom job of Vertex AI has its buckets
_STATES = {
    "JOB_STATE_SUCCEEDED": Progress.DONE, "JOB_STATE_FAILED": Progress.FAILED,
    "JOB_STATE_EXPIRED": Progress.FAILED, "JOB_STATE_CANCELLED": Progress.ENDED,
}  # fmt: skip


class TrainingError(Exception):
    """Training can't be started; ends the run with an outcome."""

    def __init__(self, outcome: str, why: str):
        super().__init__(why)
        self.outcome = outcome


@dataclass(frozen=True)
class Description:
    """Training in a run's record.

    Attributes:
        training: what trains, in words.
        ended_by: command that ends it.
    """

    training: str
    ended_by: str


class Trainer(Protocol):
    """Training of any run of an environment; every method raises RequestError or InfraError."""

    def described(self, run: Run) -> Description:
        """Return the description of a run's training."""
        ...

    def start(self, run: Run) -> None:
        """Start it, unless that has been done. Raises TrainingError."""
        ...

    def look(self, run: Run) -> Training | None:
        """Return its progress; None: it isn't there."""
        ...

    def end(self, run: Run, why: str) -> None:
        """Begin to end it, unless that has been done."""
        ...

    def keep(self, report: Callable[[str], None]) -> None:
        """Recover and delete what the service doesn't by itself; report events."""
        ...


class _Recovered:
    """Training that its service recovers."""

    def keep(self, report: Callable[[str], None]) -> None:
        """See `Trainer`."""


class JobSetTrainer(_Recovered):
    """JobSets in a team's queue, as `tpu job submit` makes them."""

    def __init__(self, settings: Settings, client: Client, endpoint: str):
        """`endpoint`: DNS name of the cluster's control plane."""
        self._settings, self._endpoint = settings, endpoint
        self._team = str(settings[PipelineSettings].train_team)
        self._cluster = Cluster(client, endpoint)

    def described(self, run: Run) -> Description:
        """See `Trainer`."""
        name = _jobset_name(run)
        cancel = f"tpu job cancel {self._settings.environment} {self._team} {name}"
        return Description(f"JobSet {name} of {self._team}", cancel)

    def start(self, run: Run) -> None:
        """See `Trainer`."""
        manifest, path = self._manifest(run), self._path()
        try:
            with about(f"https://{self._endpoint}{path}"):
                self._cluster.create(path, manifest)
        except RequestError as error:
            if error.failure.kind is not Kind.EXISTS:
                raise

    def look(self, run: Run) -> Training | None:
        """See `Trainer`."""
        path = f"{self._path()}/{_jobset_name(run)}"
        with about(f"https://{self._endpoint}{path}"):
            resource = self._cluster.get(path)
        if resource is None:
            return None
        status = resource.get("status") or {}
        ended = {str(item.get("type")): item for item in status.get("conditions") or ()}
        progress = {"Completed": Progress.DONE, "Failed": Progress.FAILED}
        state = progress.get(str(status.get("terminalState")), Progress.RUNNING)
        why = reasons.failed(str(ended.get("Failed", {}).get("message") or ""))
        reason = f"the job failed{f': {why}' if why else ''}" if state is Progress.FAILED else ""
        name = _jobset_name(run)
        return Training(state, reason, f"tpu job logs {self._settings.environment} {self._team} {name}")

    def end(self, run: Run, why: str) -> None:
        """See `Trainer`."""
        path = f"{self._path()}/{_jobset_name(run)}"
        with about(f"https://{self._endpoint}{path}"):
            self._cluster.delete(path)

    def _manifest(self, run: Run) -> dict[str, Any]:
        settings = self._settings
        words = shlex.split(handoff.command(settings, run.run, run.folder))
        size = settings[PipelineSettings].train_slice
        return jobset(
            submission(settings, JobRequest(self._team, words, name=_jobset_name(run), size=size)).job
        )

    def _path(self) -> str:
        team = next(team for team in teams(self._settings) if team.name == self._team)
        return f"/apis/{API}/namespaces/{team.namespace}/jobsets"


def _jobset_name(run: Run) -> str:
    return f"tokens-{run.training_name}"


class VertexTrainer(_Recovered):
    """Custom jobs of one host: Google documents none of several v6e hosts.

    No client names them: their display name identifies them, which is looked for before one is created.
    """

    def __init__(self, settings: Settings, client: Client):
        self._settings, self._client = settings, client
        self._region = paths.region(settings)
        place = f"projects/{settings.project}/locations/{self._region}"
        self._api = f"https://{self._region}-aiplatform.googleapis.com/v1"
        self._jobs = f"{self._api}/{place}/customJobs"

    def described(self, run: Run) -> Description:
        """See `Trainer`."""
        name, size = run.training_name, self._settings[PipelineSettings].train_slice
        cancel = f"gcloud ai custom-jobs cancel ID --project={self._settings.project} --region={self._region}"
        ended_by = f"{cancel}, of the ID that custom-jobs list shows for {name}"
        return Description(f"custom job {name} ({size}, {self._region})", ended_by)

    def start(self, run: Run) -> None:
        """See `Trainer`."""
        with about(self._jobs):
            if self._find(run) is None:
                self._client.make(self._jobs, self._body(run), lambda: self._find(run))

    def look(self, run: Run) -> Training | None:
        """See `Trainer`."""
        with about(self._jobs):
            job = self._find(run)
        if job is None:
            return None
        state, place = str(job.get("state")), f"--project={self._settings.project} --region={self._region}"
        error = (job.get("error") or {}).get("message")
        progress = _STATES.get(state, Progress.RUNNING)
        why = "" if progress is Progress.RUNNING else f"the job says {state}{f': {error}' if error else ''}"
        logs = f"gcloud ai custom-jobs list {place} --filter=display_name={run.training_name}"
        return Training(progress, why, logs)

    def end(self, run: Run, why: str) -> None:
        """See `Trainer`."""
        with about(self._jobs):
            for job in self._all(run):
                if str(job.get("state")) not in _STATES:
                    self._client.json("POST", f"{self._api}/{job['name']}:cancel", body={})

    def _find(self, run: Run) -> dict[str, Any] | None:
        """Return the oldest job of a run: a request whose answer came too late may have made another."""
        return min(self._all(run), key=lambda job: str(job.get("createTime")), default=None)

    def _all(self, run: Run) -> list[dict[str, Any]]:
        query = {"filter": f'display_name="{run.training_name}"'}
        labels = paths.labels(self._settings).items()
        jobs = self._client.items(self._jobs, "customJobs", query)
        return [job for job in jobs if labels <= (job.get("labels") or {}).items()]

    def _body(self, run: Run) -> dict[str, Any]:
        settings, desired = self._settings, self._settings[PipelineSettings]
        kind = next(kind for kind in CATALOG.types if kind.name == desired.train_slice)
        bucket = settings[StorageSettings].bucket_name
        command = handoff.command(settings, run.run, run.folder, f"{_GCSFUSE}/{bucket}")
        worker = {
            "machineSpec": {"machineType": handoff.VERTEX_MACHINES[kind.chips], "tpuTopology": kind.topology},
            "replicaCount": "1",
            # v6e takes no Persistent Disk, which is the default.
            "diskSpec": {"bootDiskType": "hyperdisk-balanced", "bootDiskSizeGb": 100},
            "containerSpec": {
                "imageUri": desired.train_image,
                "command": ["workload", *shlex.split(command)],
                "env": [{"name": "CHECKPOINT_BUCKET", "value": bucket}],
            },
        }
        return {
            "displayName": run.training_name,
            "labels": paths.labels(settings),
            "jobSpec": {
                "workerPoolSpecs": [worker],
                "scheduling": {
                    "timeout": f"{desired.train_hours * 3600}s",
                    "restartJobOnWorkerRestart": False,
                },
                "serviceAccount": service_account_email(settings),
            },
        }
