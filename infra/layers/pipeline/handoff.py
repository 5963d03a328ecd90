"""The hand-off to training: requests that the workflow sends when the shards are complete.

Each request may be sent again: what it makes is named after the run, as `paths.TRAINING`, so that a second
one is refused with 409 or 412, which the workflow takes for success. `watch` is the object that says how
training ends, `logs` the command that shows why, `ended_by` the one that ends it early. `stop` is sent when
it has, and where it takes too long; there `end` instead, if it is given. `ends` says how it ends then, if no
request of ours does it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from infra.catalog import CATALOG, SliceType
from infra.core.layer import up_command
from infra.errors import InfraError, Problem
from infra.layers.gke.settings import GkeSettings
from infra.layers.pipeline import paths
from infra.layers.pipeline.paths import RUN, TRAINING
from infra.layers.pipeline.settings import NO_TRAINING, PipelineSettings
from infra.layers.queue.jobs.jobset import API, jobset
from infra.layers.queue.jobs.submission import JobRequest, observed, submission
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import planned_pools
from infra.layers.storage.names import controller_bucket, service_account_email
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.request import member_request
from infra.settings import commands
from infra.settings.schema import Settings
from infra.slices.names import member_labels
from infra.slices.nodes import Node, nodes, zones
from infra.slices.settings import SliceSettings, TpuSettings

if TYPE_CHECKING:
    from pulumi import ProviderResource

_STORAGE = "https://storage.googleapis.com"
_TPU = "https://tpu.googleapis.com/v2"
_GCSFUSE = "/gcs"  # where a custom job of Vertex AI has its buckets
_MACHINES = {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"}


def handoff(settings: Settings, stack: str = "", cluster_endpoint: str = "") -> dict[str, Any] | None:
    """Return the requests; None without training.

    Args:
        stack: id of the slices' stack, which members of its fleets carry.
        cluster_endpoint: DNS name of the cluster's API server.
    """
    train = settings[PipelineSettings].train
    if train == NO_TRAINING:
        return None
    if train == "fleet":
        return _fleet(settings, stack)
    return _jobset(settings, cluster_endpoint) if train == "jobset" else _vertex(settings)


def command(settings: Settings, mount: str = paths.MOUNT) -> str:
    """Return the training command, with the folder of the shards as the host mounts it."""
    given = settings[PipelineSettings].train_run.replace("@RUN@", RUN)
    given = given.replace("@DATA@", f"{mount}/{paths.FOLDER}")
    if settings[PipelineSettings].train == "jobset":  # whose queue adds what observes it
        return given
    return " ".join(observed(settings, given.split(" "), paths.name(settings)))


def problems(settings: Settings) -> Iterator[Problem]:
    """Yield the problems that keep the chosen training from being started."""
    desired = settings[PipelineSettings]
    wrong = [*_run_problems(settings, desired)] if desired.train != NO_TRAINING else []
    yield from wrong
    if desired.train == "fleet":
        yield from _fleet_problems(settings, desired)
    elif desired.train == "jobset":
        yield from _jobset_problems(settings, desired, submittable=not wrong)
    elif desired.train == "vertex":
        kind = next(kind for kind in CATALOG.types if kind.name == desired.train_slice)
        if kind.chips not in _MACHINES:
            rule = f"a custom job of several hosts is documented for no v6e: {max(_MACHINES)} chips at most"
            fix = "train: fleet, or a smaller slice"
            yield Problem("pipeline:trainSlice", f'"{kind.name}"', rule, fix)
        if desired.train_image is None:
            fix = f"tpu job image {settings.environment}, and its digest as pipeline:trainImage"
            yield Problem("pipeline:trainImage", "nothing", "a custom job runs in an image", fix)


def pool_usd(settings: Settings, kind: SliceType) -> float | None:
    """Return the hourly price of the dearest node pool for such slices; None without a pool or price."""
    prices = [
        pool["pricePerHour"]
        for pool in (planned_pools(settings) if GkeSettings in settings.sections else ())
        if pool["acceleratorType"] == kind.name
    ]
    return None if not prices or None in prices else max(prices)


def require_bundle(settings: Settings, bucket: str | None, provider: ProviderResource) -> None:
    """Refuse an update whose slice would have nothing to install. Raises BundleError."""
    from infra.layers.tpu import bundle  # Pulumi's SDK, which commands don't wait for

    train = settings[PipelineSettings].train
    if train == "fleet":
        bundle.require(settings, [node(settings).bundle], bucket, provider)
    elif train == "jobset" and settings[QueueSettings].install == "bundle":
        bundle.require(settings, [settings[TpuSettings].bundle], bucket, provider)


def node(settings: Settings) -> Node:
    """Return the slice of the fleet, as `tpu:slices` would list it."""
    desired = settings[PipelineSettings]
    item = SliceSettings(
        name=TRAINING, accelerator_type=desired.train_slice, zones=(str(desired.train_zone),), count=1,
        spot=desired.train_spot, run=command(settings),
    )  # fmt: skip
    alone = replace(settings[TpuSettings], slices=(item,))
    (training,) = nodes(replace(settings, sections={**settings.sections, TpuSettings: alone}))
    return replace(training, name=TRAINING)


def _fleet(settings: Settings, stack: str) -> dict[str, Any]:
    """Return the requests for an ad hoc fleet of one, as `tpu run` makes it; a monitor recovers it."""
    desired, member = settings[PipelineSettings], node(settings)
    controllers, bucket = controller_bucket(settings), settings[StorageSettings].bucket_name
    described = {
        "name": TRAINING, "acceleratorType": desired.train_slice, "zones": [member.zone], "count": 1,
        "spot": desired.train_spot, "run": member.run, "bundle": member.bundle, "stopWhenDone": True,
    }  # fmt: skip
    labels = member_labels(settings.environment, TRAINING, 0, stack)
    body = member_request(settings, member, {**member.labels, **labels, "bundle": member.bundle_label})
    nodes_ = f"{_TPU}/projects/{settings.project}/locations/{member.zone}/nodes"
    heartbeat = f"heartbeats%2F{TRAINING}%2Fworker-0"
    description = f"{stack}/fleets/{TRAINING}.json"
    return {
        "training": f"slice {TRAINING} ({desired.train_slice}, {member.zone})",
        "logs": f"tpu logs {settings.environment} {TRAINING}",
        "ended_by": f"tpu fleet delete {settings.environment} --slice {TRAINING}",
        "start": [
            {
                "method": "POST",
                "url": f"{_STORAGE}/upload/storage/v1/b/{controllers}/o?uploadType=media&ifGenerationMatch=0"
                f"&name={description.replace('/', '%2F')}",
                "body": described,
            },
            {"method": "POST", "url": f"{nodes_}?nodeId={TRAINING}", "body": body},
        ],
        "watch": {
            "url": f"{_STORAGE}/storage/v1/b/{bucket}/o/{heartbeat}?alt=media",
            "path": ["state"],
            "done": ["done"],
            "failed": [],  # a program that failed is started again, unless its heartbeat says `final`
        },
        "stop": [
            {"method": "DELETE", "url": f"{_STORAGE}/storage/v1/b/{controllers}/o/"
             f"{description.replace('/', '%2F')}"},
            {"method": "DELETE", "url": f"{nodes_}/{TRAINING}"},
        ],
    }  # fmt: skip


def _published(settings: Settings) -> Settings:
    """With a bundle: the settings are read before the first one is published, and previewed; `require_bundle`
    ends an update without.
    """
    tpu = settings[TpuSettings]
    if tpu.bundle:
        return settings
    return replace(settings, sections={**settings.sections, TpuSettings: replace(tpu, bundle="0" * 64)})


def _jobset(settings: Settings, endpoint: str) -> dict[str, Any]:
    settings = _published(settings)
    desired = settings[PipelineSettings]
    request = JobRequest(
        str(desired.train_team),
        shlex.split(command(settings)),
        name=f"tokens-{TRAINING}",
        size=desired.train_slice,
    )
    made = jobset(submission(settings, request).job)
    namespace = made["metadata"]["namespace"]
    url = f"https://{endpoint}/apis/{API}/namespaces/{namespace}/jobsets"
    return {
        "training": f"JobSet tokens-{TRAINING} of {desired.train_team}",
        "logs": f"tpu job logs {settings.environment} {desired.train_team} tokens-{TRAINING}",
        "ended_by": f"tpu job cancel {settings.environment} {desired.train_team} tokens-{TRAINING}",
        "start": [{"method": "POST", "url": url, "body": made}],
        "watch": {
            "url": f"{url}/tokens-{TRAINING}",
            "path": ["status", "terminalState"],
            "done": ["Completed"],
            "failed": ["Failed"],
        },
        "stop": [],  # the queue keeps it for a while, and then deletes it
        "end": [{"method": "DELETE", "url": f"{url}/tokens-{TRAINING}"}],
    }


def _vertex(settings: Settings) -> dict[str, Any]:
    """Return the requests for a custom job of one host: Google documents none of several v6e hosts.

    Custom jobs have no client-given name, and a repeated request makes a second job: `once` is read before.
    """
    desired = settings[PipelineSettings]
    region = paths.region(settings)
    bucket = settings[StorageSettings].bucket_name
    base = f"https://{region}-aiplatform.googleapis.com/v1/projects/{settings.project}/locations/{region}"
    kind = next(kind for kind in CATALOG.types if kind.name == desired.train_slice)
    return {
        "training": f"custom job {TRAINING} ({desired.train_slice}, {region})",
        "logs": f"gcloud ai custom-jobs list --project={settings.project} --region={region} "
        f"--filter=displayName={TRAINING}",
        "ended_by": f"gcloud ai custom-jobs cancel ID --project={settings.project} --region={region}, "
        f"of the ID that custom-jobs list shows for {TRAINING}",
        "once": f'{base}/customJobs?filter=displayName%3D"{TRAINING}"',
        "start": [
            {
                "method": "POST",
                "url": f"{base}/customJobs",
                "body": {
                    "displayName": TRAINING,
                    "labels": paths.labels(settings),
                    "jobSpec": {
                        "workerPoolSpecs": [
                            {
                                "machineSpec": {
                                    "machineType": _MACHINES[kind.chips], "tpuTopology": kind.topology
                                },
                                "replicaCount": "1",
                                # v6e takes no Persistent Disk, which is the default.
                                "diskSpec": {"bootDiskType": "hyperdisk-balanced", "bootDiskSizeGb": 100},
                                "containerSpec": {
                                    "imageUri": desired.train_image,
                                    "command": [
                                        "workload", *shlex.split(command(settings, f"{_GCSFUSE}/{bucket}"))
                                    ],
                                    "env": [{"name": "CHECKPOINT_BUCKET", "value": bucket}],
                                },
                            }
                        ],
                        "scheduling": {
                            "timeout": f"{desired.train_hours * 3600}s",
                            "restartJobOnWorkerRestart": False,
                        },
                        "serviceAccount": service_account_email(settings),
                    },
                },
            }
        ],
        "watch": {
            "url": f'{base}/customJobs?filter=displayName%3D"{TRAINING}"',
            "list": "customJobs",
            "path": ["state"],
            "done": ["JOB_STATE_SUCCEEDED"],
            "failed": ["JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED"],
        },
        "stop": [],
        "ends": "Vertex AI ends it itself, that long after it began to run",
    }  # fmt: skip


def _run_problems(settings: Settings, desired: PipelineSettings) -> Iterator[Problem]:
    """Yield problems of the program, by the rules of a slice's `run`: its slice is billed before it ends."""
    path, run = "pipeline:trainRun", desired.train_run
    if missing := [word for word in ("@RUN@", "@DATA@") if word not in run]:
        rule = "a run trains on its own shards, under its own name"
        fix = "write e.g. train tiny.toml --name @RUN@ --set data.path=@DATA@"
        yield Problem(path, f'"{run}" without {" and ".join(missing)}', rule, fix)
    if desired.train == "vertex" and commands.split(run)[0] not in commands.COMMANDS:
        rule = f"a custom job runs a command of the workload: {', '.join(commands.COMMANDS)}"
        yield Problem(path, f'"{run}"', rule, "write e.g. train …, or train: fleet")
        return
    named = run.replace("@RUN@", RUN).replace("@DATA@", f"{paths.MOUNT}/{paths.FOLDER}")
    if wrong := [*commands.wrong_options(path, named)]:
        yield from (replace(problem, value=f'"{run}"') for problem in wrong)
        return
    queue = settings.get(QueueSettings)
    image = desired.train == "vertex" or (desired.train == "jobset" and queue and queue.install == "image")
    if not image and not settings[TpuSettings].code:
        yield from commands.missing_file(path, run)


def _fleet_problems(settings: Settings, desired: PipelineSettings) -> Iterator[Problem]:
    covered = zones(settings)
    if desired.train_zone not in covered:
        value = f'"{desired.train_zone}"' if desired.train_zone else "nothing"
        rule = f"a zone with a subnet: {', '.join(covered) or 'there is none'}"
        yield Problem("pipeline:trainZone", value, rule, "one of these, or add the zone to tpu:zones")


def _jobset_problems(
    settings: Settings, desired: PipelineSettings, *, submittable: bool
) -> Iterator[Problem]:
    """`submittable`: the program is one that a team may submit."""
    queue = settings.get(QueueSettings)
    if queue is None or settings.get(GkeSettings) is None:
        yield Problem("pipeline:train", '"jobset"', "the layers gke and queue are on", "write their settings")
        return
    member = f"serviceAccount:{paths.account(settings, paths.ORCHESTRATOR)}"
    team = next((team for team in queue.teams if team.name == desired.train_team), None)
    if team is None:
        known = ", ".join(team.name for team in queue.teams)
        value = f'"{desired.train_team}"' if desired.train_team else "nothing"
        yield Problem("pipeline:trainTeam", value, f"one of queue:teams: {known}", "write one of these")
        return
    if member not in team.members:
        rule = "the workflow submits as a member of the team"
        up = up_command("queue", settings.environment)
        fix = f"add {member} to the members of {team.name}, then {up}"
        yield Problem(f"queue:teams ({team.name})", f"{len(team.members)} members without it", rule, fix)
    if not submittable:
        return
    try:
        words = shlex.split(command(settings))
        submission(
            _published(settings), JobRequest(team.name, words, name="tokens", size=desired.train_slice)
        )
    except InfraError as error:
        yield Problem("pipeline:trainSlice", f'"{desired.train_slice}"', str(error), "correct it")
