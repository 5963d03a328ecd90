"""Declaration of the slurm layer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pulumi
import pulumi_gcp as gcp

from infra.core import upstream
from infra.core.guard import SLICES, Living
from infra.core.packed import PACKAGES, packed
from infra.layers.builds.outputs import applying_member
from infra.layers.network.names import CLUSTER_LABEL
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.slurm import names
from infra.layers.slurm.accounts import MungeSecret, SlurmAccounts
from infra.layers.slurm.firewall import SlurmFirewall
from infra.layers.slurm.handoff import require_bundles
from infra.layers.slurm.machines import Controller, Home, LoginNodes
from infra.layers.slurm.outputs import SlurmOutputs
from infra.layers.slurm.settings import FILESTORE, SlurmSettings
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.tpu.outputs import TpuOutputs
from infra.settings.schema import Settings
from infra.settings.sources import part

_BESIDE = tuple(f"workload/{name}.py" for name in ("arguments", "errors", "place", "slurm"))
"""What workload.host, which sends a machine's lines to Cloud Logging, imports."""


def archive_of(settings: Settings) -> Path:
    """Return the zip of what the machines run, with the settings."""
    beside = {name: part(name) for name in _BESIDE}
    return packed(settings, (*PACKAGES, "slurm", "workload/host"), beside=beside)


class Program(pulumi.ComponentResource):
    """The machines' program, an object that its content names; `value` is what their metadata says of it."""

    value: str

    def __init__(self, settings: Settings, bucket: pulumi.Input[str], opts: pulumi.ResourceOptions):
        super().__init__("tpu:slurm:Program", names.name(settings), None, opts)
        archive = archive_of(settings)
        sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
        name = f"{names.programs(settings)}/{sha256}.zip"
        # Named by its content, or an update that fails and is taken back would delete what it makes again.
        gcp.storage.BucketObject(
            f"program-{sha256[:12]}",
            bucket=bucket,
            name=name,
            source=pulumi.FileAsset(str(archive)),
            # A machine that boots meanwhile still finds what its metadata names.
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.value = f"{name} {sha256}"
        self.register_outputs({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> SlurmOutputs:
    """Declare accounts, munge's secret, ports, the controller and the login nodes; slices are the fleet's."""
    provider, desired = providers["gcp"], settings[SlurmSettings]
    opts = pulumi.ResourceOptions(provider=provider)
    require_bundles(settings, upstream.known(StorageOutputs, "bucket_name"), provider)
    # Read all outputs first: a missing layer is reported before anything is created.
    bucket = upstream.read(StorageOutputs, settings).bucket_name
    network = upstream.read(NetworkOutputs, settings)
    network_id, subnet = network.network_id, network.subnet_ids[names.region(settings)]
    stack = upstream.read(TpuOutputs, settings).stack_id
    applying = applying_member(settings)
    accounts = SlurmAccounts(settings, applying, stack, opts)
    secret = MungeSecret(settings, accounts, opts)
    firewall = SlurmFirewall(settings, network_id, opts)
    code = Program(settings, bucket, opts)
    home = Home(settings, network_id, opts) if desired.home_storage == FILESTORE else None
    metadata: dict[str, pulumi.Input[str] | None] = {
        names.BUCKET_KEY: bucket,
        names.BUNDLE_KEY: desired.bundle,  # None only in a preview: an update refuses to continue
        names.PROGRAM_KEY: code.value,
        names.ENVIRONMENT_KEY: settings.environment,
        names.STACK_KEY: stack,
        names.MUNGE_KEY: names.munge_secret_id(settings),
    }
    after = pulumi.ResourceOptions(provider=provider, depends_on=[secret, firewall, code])
    served = home.home if home else None
    controller = Controller(settings, accounts, subnet, metadata, served, after)
    logins = LoginNodes(settings, accounts, subnet, metadata, controller, after)
    # Without the controller nobody would keep and end the slices.
    labels: dict[str, pulumi.Input[str]] = {"stack": stack, CLUSTER_LABEL: names.name(settings)}
    guarded = [accounts, secret, firewall, code, controller, logins, *([home] if home else [])]
    Living(SLICES, settings.project, settings.environment, labels, guarded)
    planned = SlurmOutputs.planned(settings)
    return SlurmOutputs(
        **{key: pulumi.Output.from_input(value) for key, value in planned.items() if key != "login_nodes"},
        controller=controller.instance.id,
        controller_address=controller.address,
        home=controller.home,
        login_nodes=pulumi.Output.all(*(instance.name for instance in logins.instances)),
    )
