"""Declares the pipeline layer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pulumi
import pulumi_gcp as gcp

from infra.core import upstream
from infra.core.guard import RUNS, Living
from infra.core.packed import PACKAGES, packed
from infra.layers.builds.outputs import applying_member
from infra.layers.gke.outputs import GkeOutputs
from infra.layers.network import names as network_names
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.pipeline import handoff, paths, spark
from infra.layers.pipeline.accounts import PipelineAccounts
from infra.layers.pipeline.buckets import RawBucket, ScratchBucket, require_raw_bucket
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.outputs import PipelineOutputs
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.pipeline.triggers import Triggers
from infra.layers.storage.names import controller_bucket
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.outputs import TpuOutputs
from infra.settings.schema import Settings
from infra.settings.sources import ROOT, part
from infra.slices.names import STACK_ID_VARIABLE

_RUNTIME = "python312"
_ENTRY = "infra/layers/pipeline/function"


class PipelineFunction(pulumi.ComponentResource):
    """The function that runs the pipeline; its source is named by its content."""

    function: gcp.cloudfunctionsv2.Function
    url: pulumi.Output[str]

    def __init__(
        self,
        settings: Settings,
        accounts: PipelineAccounts,
        variables: Mapping[str, pulumi.Input[str]],
        opts: pulumi.ResourceOptions,
    ):
        name, region = paths.name(settings), paths.region(settings)
        before = pulumi.ResourceOptions(aliases=[pulumi.Alias(type_="tpu:pipeline:CheckFunction")])
        super().__init__("tpu:pipeline:Function", name, None, pulumi.ResourceOptions.merge(opts, before))
        child = pulumi.ResourceOptions(parent=self, depends_on=accounts.all)
        packed = source(settings)
        archive = gcp.storage.BucketObject(
            "source",
            bucket=scratch_bucket(settings),
            name=f"{paths.FUNCTION}/{hashlib.sha256(packed.read_bytes()).hexdigest()}.zip",
            source=pulumi.FileAsset(str(packed)),
            opts=child,
        )
        self.function = gcp.cloudfunctionsv2.Function(
            name,
            name=name,
            location=region,
            description="From submitted text to a training job",
            build_config={
                "runtime": _RUNTIME,
                "entry_point": paths.ENTRY,
                "service_account": accounts.id_of(paths.BUILD),
                "docker_repository": accounts.repository.id,
                "source": {
                    "storage_source": {
                        "bucket": scratch_bucket(settings),
                        "object": archive.name,
                        "generation": archive.generation,  # what was put there, and nothing that came later
                    }
                },
            },
            service_config={
                "service_account_email": paths.account(settings, paths.ORCHESTRATOR),
                "environment_variables": {paths.ENVIRONMENT: settings.environment, **variables},
                "available_memory": "512Mi",
                "timeout_seconds": 1800,
                "max_instance_count": 5,
                "max_instance_request_concurrency": 1,
                "ingress_settings": "ALLOW_INTERNAL_ONLY",
                "all_traffic_on_latest_revision": True,
            },
            opts=pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(hooks=accounts.acting)),
        )
        self.url = self.function.service_config.apply(lambda config: (config.uri if config else "") or "")
        gcp.cloudrunv2.ServiceIamMember(
            "invoker",
            project=settings.project,
            location=region,
            name=name,
            role="roles/run.invoker",
            member=f"serviceAccount:{paths.account(settings, paths.TRIGGER)}",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self.function]),
        )
        self.register_outputs({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> PipelineOutputs:
    """Buckets, accounts, the function and what calls it."""
    provider, desired = providers["gcp"], settings[PipelineSettings]
    opts = pulumi.ResourceOptions(provider=provider)
    if ends := spark.runtime_ends_soon(settings, datetime.now(UTC).date()):
        pulumi.log.warn(ends)
    handoff.require_bundle(settings, upstream.known(StorageOutputs, "bucket_name"), provider)
    # Read all outputs first: a missing layer is reported before anything is created.
    network_id = upstream.read(NetworkOutputs, settings).network_id
    applying = applying_member(settings)
    stack: pulumi.Output[str] | None = None
    variables: dict[str, pulumi.Input[str]] = {}
    if desired.train == "fleet":
        stack = upstream.read(TpuOutputs, settings).stack_id
        variables[STACK_ID_VARIABLE] = stack
    elif desired.train == "jobset":
        variables[paths.CLUSTER_ENDPOINT] = upstream.read(GkeOutputs, settings).endpoint
    made: list[pulumi.Resource] = []
    if desired.existing_raw_bucket:
        require_raw_bucket(settings, provider)
    else:
        made.append(RawBucket(settings, opts).bucket)
    made.append(ScratchBucket(settings, opts).bucket)
    # By its address the project's number is known to a preview before anything is up; reading it makes it.
    storage_agent = gcp.storage.get_project_service_account_output(
        project=settings.project, opts=pulumi.InvokeOutputOptions(provider=provider)
    ).email_address
    number = storage_agent.apply(lambda email: email.partition("@")[0].removeprefix("service-"))
    accounts = PipelineAccounts(settings, applying, made, stack, number, opts)
    firewall = SparkFirewall(settings, network_id, opts)
    function = PipelineFunction(settings, accounts, variables, opts)
    triggers = Triggers(settings, accounts, function, function.url, number, storage_agent, opts)
    guarded = [*made, accounts, firewall, function, triggers]
    records: dict[str, pulumi.Input[str]] = {
        "bucket": controller_bucket(settings), "folder": paths.RECORDS, "train": handoff.trains_by(settings),
    }  # fmt: skip
    Living(RUNS, settings.project, settings.environment, records, guarded)
    return PipelineOutputs(
        function=function.function.id,
        function_url=function.url,
        raw_bucket_name=pulumi.Output.from_input(desired.raw_bucket_name),
        scratch_bucket_name=pulumi.Output.from_input(scratch_bucket(settings)),
        tokens_folder=pulumi.Output.from_input(
            f"gs://{settings[StorageSettings].bucket_name}/{paths.TOKENS}"
        ),
        accounts=pulumi.Output.from_input(
            {which: paths.account(settings, which) for which in paths.ACCOUNTS}
        ),
        trigger=triggers.event.id if triggers.event else None,
        sweep=triggers.sweep.id,
        useful_commands=pulumi.Output.from_input(useful_commands(settings.environment, desired)),
    )


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


def source(settings: Settings, root: Path = ROOT) -> Path:
    """Return the function's source as a zip that is the same for the same files."""
    beside = {name: part(f"{_ENTRY}/{name}") for name in ("main.py", "requirements.txt")}
    return packed(settings, (*PACKAGES, "pipeline"), root, beside)
