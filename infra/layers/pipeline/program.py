"""Declares the pipeline layer."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.core import upstream
from infra.core.guard import RUNS, Living
from infra.layers.builds.outputs import applying_member
from infra.layers.gke.outputs import GkeOutputs
from infra.layers.network import names as network_names
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.pipeline import access, handoff, paths, price, spark
from infra.layers.pipeline.accounts import PipelineAccounts
from infra.layers.pipeline.buckets import RawBucket, ScratchBucket, require_raw_bucket
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.outputs import PipelineOutputs
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.pipeline.triggers import Triggers
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.outputs import TpuOutputs
from infra.settings.schema import Settings

_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_RUNTIME = "python312"


class CheckFunction(pulumi.ComponentResource):
    """The function that answers whether shards are complete; its source is named by its content."""

    function: gcp.cloudfunctionsv2.Function

    def __init__(self, settings: Settings, accounts: PipelineAccounts, opts: pulumi.ResourceOptions):
        name, region = paths.name(settings), paths.region(settings)
        super().__init__("tpu:pipeline:CheckFunction", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, depends_on=accounts.all)
        packed = source()
        archive = gcp.storage.BucketObject(
            "source",
            bucket=scratch_bucket(settings),
            name=f"function-{hashlib.sha256(packed.read_bytes()).hexdigest()}.zip",
            source=pulumi.FileAsset(str(packed)),
            opts=child,
        )
        self.function = gcp.cloudfunctionsv2.Function(
            name,
            name=name,
            location=region,
            description="Answers whether the shards of a run are complete",
            build_config={
                "runtime": _RUNTIME,
                "entry_point": "check",
                "service_account": accounts.id_of(paths.BUILD),
                "docker_repository": accounts.repository.id,
                "source": {"storage_source": {"bucket": scratch_bucket(settings), "object": archive.name}},
            },
            service_config={
                "service_account_email": paths.account(settings, paths.CHECK),
                "available_memory": "512Mi",
                "timeout_seconds": 1800,
                "max_instance_count": 10,
                "max_instance_request_concurrency": 1,
                "ingress_settings": "ALLOW_INTERNAL_ONLY",
                "all_traffic_on_latest_revision": True,
            },
            opts=pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(hooks=accounts.acting)),
        )
        gcp.cloudrunv2.ServiceIamMember(
            "invoker",
            project=settings.project,
            location=region,
            name=name,
            role="roles/run.invoker",
            member=f"serviceAccount:{paths.account(settings, paths.ORCHESTRATOR)}",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self.function]),
        )
        self.register_outputs({})


class Orchestrator(pulumi.ComponentResource):
    """The workflow, and the object with all that it has to know."""

    workflow: gcp.workflows.Workflow

    def __init__(
        self,
        settings: Settings,
        accounts: PipelineAccounts,
        function: gcp.cloudfunctionsv2.Function,
        known: pulumi.Input[Mapping[str, Any]],
        opts: pulumi.ResourceOptions,
    ):
        name = paths.name(settings)
        super().__init__("tpu:pipeline:Orchestrator", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, depends_on=accounts.all)
        url = function.service_config.apply(lambda config: (config.uri if config else "") or "")
        content = pulumi.Output.all(known, url).apply(
            lambda values: json.dumps({**values[0], "function": values[1]}, indent=1, sort_keys=True)
        )
        # Named by its content: a run reads what it began with.
        at = content.apply(
            lambda text: f"{paths.RECORDS}/settings/{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        )
        stored = gcp.storage.BucketObject(
            "settings",
            bucket=settings[StorageSettings].bucket_name,
            name=at,
            content=content,
            content_type="application/json",
            opts=child,
        )
        self.workflow = gcp.workflows.Workflow(
            name,
            name=name,
            region=paths.region(settings),
            description="From submitted text to a training job",
            service_account=paths.account(settings, paths.ORCHESTRATOR),
            source_contents=resources.files("infra.layers.pipeline")
            .joinpath("workflow.yaml")
            .read_text("utf-8"),
            call_log_level="LOG_ERRORS_ONLY",
            deletion_protection=False,
            user_env_vars={
                "BUCKET": settings[StorageSettings].bucket_name,
                "SETTINGS": stored.name,
            },
            opts=pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(hooks=accounts.acting)),
        )
        self.register_outputs({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> PipelineOutputs:
    """Buckets, accounts, the function, the workflow and what starts it."""
    provider, desired = providers["gcp"], settings[PipelineSettings]
    opts = pulumi.ResourceOptions(provider=provider)
    if ends := spark.runtime_ends_soon(settings, datetime.now(UTC).date()):
        pulumi.log.warn(ends)
    handoff.require_bundle(settings, upstream.known(StorageOutputs, "bucket_name"), provider)
    # Read all outputs first: a missing layer is reported before anything is created.
    network_id = upstream.read(NetworkOutputs, settings).network_id
    applying = applying_member(settings)
    stack: pulumi.Input[str] = ""
    endpoint: pulumi.Input[str] = ""
    if desired.train == "fleet":
        stack = upstream.read(TpuOutputs, settings).stack_id
    elif desired.train == "jobset":
        endpoint = upstream.read(GkeOutputs, settings).endpoint
    made: list[pulumi.Resource] = []
    if desired.existing_raw_bucket:
        require_raw_bucket(settings, provider)
    else:
        made.append(RawBucket(settings, opts).bucket)
    made.append(ScratchBucket(settings, opts).bucket)
    accounts = PipelineAccounts(settings, applying, made, opts)
    firewall = SparkFirewall(settings, network_id, opts)
    check = CheckFunction(settings, accounts, opts)
    function = check.function
    known = pulumi.Output.all(stack, endpoint).apply(lambda values: settings_of_runs(settings, *values))
    orchestrator = Orchestrator(settings, accounts, function, known, opts)
    workflow = orchestrator.workflow
    triggers = Triggers(settings, accounts, workflow, provider, opts)
    guarded = [*made, accounts, firewall, check, orchestrator, triggers]
    Living(RUNS, settings.project, settings.environment, {"workflow": workflow.id}, guarded)
    place = settings.environment
    return PipelineOutputs(
        workflow=workflow.id,
        function_url=function.service_config.apply(lambda config: (config.uri if config else "") or ""),
        raw_bucket_name=pulumi.Output.from_input(desired.raw_bucket_name),
        scratch_bucket_name=pulumi.Output.from_input(scratch_bucket(settings)),
        tokens_folder=pulumi.Output.from_input(
            f"gs://{settings[StorageSettings].bucket_name}/{paths.TOKENS}"
        ),
        accounts=pulumi.Output.from_input(
            {which: paths.account(settings, which) for which in paths.ACCOUNTS}
        ),
        trigger=triggers.event.id if triggers.event else None,
        schedule=triggers.job.id if triggers.job else None,
        useful_commands=pulumi.Output.from_input(useful_commands(place, desired)),
    )


def settings_of_runs(settings: Settings, stack: str, endpoint: str) -> dict[str, Any]:
    """All that the workflow has to know, but the function's URL."""
    desired = settings[PipelineSettings]
    return {
        "environment": settings.environment,
        "project": settings.project,
        "region": paths.region(settings),
        "bucket": settings[StorageSettings].bucket_name,
        "raw": desired.raw_bucket_name,
        "tokens": paths.TOKENS,
        "code": desired.code,
        "batch": spark.batch(settings),
        "batch_prefix": f"{paths.name(settings)}-",
        "ttl_s": desired.ttl_minutes * 60,
        "poll_s": desired.poll_s,
        "handoff": handoff.handoff(settings, stack, endpoint),
        "train_hours": desired.train_hours,
        "price": price.of_runs(settings),
        "grants": access.by_message(settings),
    }


def useful_commands(environment: str, desired: PipelineSettings) -> dict[str, str]:
    """Return commands to paste, for the environment."""
    raw = f"gs://{desired.raw_bucket_name}/FOLDER/"
    return {
        "upload": f"gcloud storage cp *.jsonl.gz {raw}",
        "run": f"tpu pipeline run {environment} {raw}",
        "status": f"tpu pipeline status {environment}",
        "logs": f"tpu pipeline logs {environment} RUN",
        "cancel": f"tpu pipeline cancel {environment} RUN",
        "retry": f"tpu pipeline retry {environment} RUN",
        "cost": f"tpu pipeline cost {environment}",
    }


def source() -> Path:
    """Return the function's source as a zip that is the same for the same files."""
    folder = resources.files("infra.layers.pipeline").joinpath("function")
    path = Path(tempfile.mkdtemp(prefix="tpu-function.")) / "function.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for name in ("main.py", "requirements.txt"):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, folder.joinpath(name).read_bytes(), zipfile.ZIP_DEFLATED)
    return path


class SparkFirewall(pulumi.ComponentResource):
    """Firewall rule for traffic between Spark's nodes; nothing else reaches them."""

    def __init__(self, settings: Settings, network: pulumi.Input[str], opts: pulumi.ResourceOptions):
        name = paths.name(settings)
        super().__init__("tpu:pipeline:SparkFirewall", name, None, opts)
        gcp.compute.Firewall(
            name,
            name=name,
            project=network_names.network_id(settings).split("/")[1],
            network=network,
            direction="INGRESS",
            source_tags=[paths.TAG],
            target_tags=[paths.TAG],
            # https://cloud.google.com/dataproc-serverless/docs/concepts/network: all ports.
            allows=[{"protocol": "tcp", "ports": ["0-65535"]}, {"protocol": "icmp"}],
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})
