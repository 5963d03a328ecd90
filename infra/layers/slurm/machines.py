"""Machines of the cluster: the controller with its disk and address, and the login nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_gcp as gcp

from google_facts.scopes import EVERYTHING
from infra.core.guard import GROWING, Living
from infra.layers.slurm import names
from infra.layers.slurm.accounts import SlurmAccounts
from infra.layers.slurm.price import BOOT_GIB, boot_disk
from infra.layers.slurm.settings import SlurmSettings
from infra.layers.tpu import startup
from infra.settings.schema import Settings

IMAGE = "projects/debian-cloud/global/images/family/debian-12"
"""Slurm comes from the bundle, whose packages are this Debian's."""
_COMMON = {
    "enable-guest-attributes": "TRUE",
    "enable-oslogin": "TRUE",
    "block-project-ssh-keys": "TRUE",
    "serial-port-enable": "FALSE",
}


def machine(
    settings: Settings,
    name: str,
    role: str,
    interface: gcp.compute.InstanceNetworkInterfaceArgsDict,
    metadata: Mapping[str, pulumi.Input[str] | None],
    opts: pulumi.ResourceOptions,
    disks: list[gcp.compute.InstanceAttachedDiskArgsDict] | None = None,
) -> gcp.compute.Instance:
    """Declare a machine without an external address; its metadata changes in place."""
    desired = settings[SlurmSettings]
    kind = desired.controller_machine_type if role == names.CONTROLLER else desired.login_machine_type
    own = {names.MACHINE_KEY: name, names.ROLE_KEY: role, names.ZONE_KEY: names.zone(settings)}
    attributes = {"startup-script": startup.loader(), **own, **metadata, **_COMMON}
    return gcp.compute.Instance(
        name,
        name=name,
        zone=names.zone(settings),
        machine_type=kind,
        description=f"Slurm {role} of {names.name(settings)}",
        tags=[names.tag(settings, role)],
        boot_disk={"initialize_params": {"image": IMAGE, "size": BOOT_GIB, "type": boot_disk(kind)}},
        attached_disks=disks,
        network_interfaces=[interface],
        service_account={"email": names.account(settings, role), "scopes": [EVERYTHING]},
        shielded_instance_config={
            "enable_secure_boot": True, "enable_vtpm": True, "enable_integrity_monitoring": True,
        },
        metadata={key: value for key, value in attributes.items() if value is not None},
        allow_stopping_for_update=True,
        opts=opts,
    )  # fmt: skip


class Controller(pulumi.ComponentResource):
    """The controller: its state and its address outlive the machine, and the state the stack."""

    instance: gcp.compute.Instance
    address: pulumi.Output[str]

    def __init__(
        self,
        settings: Settings,
        accounts: SlurmAccounts,
        subnet: pulumi.Input[str],
        metadata: Mapping[str, pulumi.Input[str] | None],
        home: pulumi.Output[str] | None,
        opts: pulumi.ResourceOptions,
    ):
        """Declare it.

        Args:
            settings: of the environment.
            accounts: that machines run as.
            subnet: id of its subnet.
            metadata: what machines of all roles have.
            home: SERVER:PATH of /home; on the controller itself, unless given.
            opts: of the component.
        """
        name = names.controller(settings)
        super().__init__("tpu:slurm:Controller", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        address = gcp.compute.Address(
            name,
            name=name,
            region=names.region(settings),
            address_type="INTERNAL",
            subnetwork=subnet,
            description="Slurm controller, where hosts and login nodes find it",
            opts=child,
        )
        self.address = address.address
        self.home = home or self.address.apply(lambda own: f"{own}:/home")
        own = {**metadata, names.CONTROLLER_KEY: self.address, names.HOME_KEY: self.home}
        self.instance = machine(
            settings,
            name,
            names.CONTROLLER,
            {"subnetwork": subnet, "network_ip": self.address},
            own,
            pulumi.ResourceOptions(parent=self, depends_on=[accounts], hooks=accounts.acting),
            [{"source": self._state(settings), "device_name": names.STATE_DEVICE, "mode": "READ_WRITE"}],
        )
        self.register_outputs({})

    def _state(self, settings: Settings) -> pulumi.Input[str]:
        """Return the id of the state disk, made or given."""
        desired, name = settings[SlurmSettings], names.state_disk(settings)
        if desired.existing_state_disk:
            return desired.existing_state_disk
        disk = gcp.compute.Disk(
            name,
            name=name,
            zone=names.zone(settings),
            type=desired.state_disk_type,
            size=desired.state_disk_gib,
            opts=pulumi.ResourceOptions(parent=self, protect=True, retain_on_delete=True),
        )
        return disk.id


class LoginNodes(pulumi.ComponentResource):
    """Login nodes, which nothing is lost with; people reach them through Identity-Aware Proxy."""

    instances: list[gcp.compute.Instance]

    def __init__(
        self,
        settings: Settings,
        accounts: SlurmAccounts,
        subnet: pulumi.Input[str],
        metadata: Mapping[str, pulumi.Input[str] | None],
        controller: Controller,
        opts: pulumi.ResourceOptions,
    ):
        super().__init__("tpu:slurm:LoginNodes", names.name(settings), None, opts)
        own = {**metadata, names.CONTROLLER_KEY: controller.address, names.HOME_KEY: controller.home}
        after = pulumi.ResourceOptions(
            parent=self, depends_on=[accounts, controller.instance], hooks=accounts.acting
        )
        self.instances = [
            machine(settings, name, names.LOGIN, {"subnetwork": subnet}, own, after)
            for name in names.logins(settings)
        ]
        self.register_outputs({})


class Home(pulumi.ComponentResource):
    """A Filestore instance with /home; it outlives the stack as the state disk does."""

    def __init__(self, settings: Settings, network: pulumi.Input[str], opts: pulumi.ResourceOptions):
        desired, name = settings[SlurmSettings], names.filestore(settings)
        super().__init__("tpu:slurm:Home", name, None, opts)
        instance = gcp.filestore.Instance(
            name,
            name=name,
            location=names.filestore_id(settings).split("/")[3],
            tier=desired.filestore_tier,
            file_shares={"name": names.FILESTORE_SHARE, "capacity_gb": desired.filestore_gib},
            networks=[{"network": network, "modes": ["MODE_IPV4"]}],
            description=f"/home of {names.name(settings)}",
            opts=pulumi.ResourceOptions(parent=self, protect=True, retain_on_delete=True),
        )
        if desired.filestore_tier.startswith("BASIC"):
            # https://cloud.google.com/filestore/docs/scale: only tiers above these scale down.
            size: dict[str, pulumi.Input[str]] = {"slurm:filestoreGib": str(desired.filestore_gib)}
            Living(GROWING, settings.project, settings.environment, size, [instance], "Filestore instance")
        self.server: pulumi.Output[str] = instance.networks.apply(
            lambda networks: _address(networks[0].ip_addresses)
        )
        self.home = self.server.apply(lambda server: f"{server}:/{names.FILESTORE_SHARE}")
        self.register_outputs({})


def _address(addresses: Sequence[str] | None) -> pulumi.Output[str]:
    """Return the instance's address, which Google chooses."""
    known: Any = addresses[0] if addresses else pulumi.UNKNOWN
    return pulumi.Output.from_input(known)
