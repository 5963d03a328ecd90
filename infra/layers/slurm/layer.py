"""Slurm layer: a controller, login nodes, and partitions of slices that the fleet makes and keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google_facts.machines import cpus_of
from infra.catalog import region_of
from infra.core.layer import Acting, Hooks, Layer, Named, Offer, Place, deferred
from infra.core.providers import GOOGLE
from infra.google.ids import of_compute
from infra.google.quotas import Use, chips, cpus
from infra.google.role import Role, act_as
from infra.layers.slurm import access, names, price, startup, watched
from infra.layers.slurm.outputs import SlurmOutputs
from infra.layers.slurm.rules import RULES, checked
from infra.layers.slurm.settings import FILESTORE, NodesetSettings, SlurmSettings
from infra.layers.slurm.slices import nodesets
from infra.settings.schema import Settings
from infra.slices.settings import TpuSettings


def _services(settings: Settings) -> Iterator[str]:
    for service in ("compute", "iap", "oslogin", "secretmanager", "tpu"):
        yield f"{service}.googleapis.com"
    if settings[SlurmSettings].home_storage == FILESTORE:
        yield "file.googleapis.com"


def _accounts(settings: Settings) -> Iterable[Named]:
    return (Named("slurm:name", names.account_id(settings, role), f"Slurm's {role}") for role in names.ROLES)


def _places(settings: Settings) -> Iterator[Place]:
    if settings[SlurmSettings].home_storage == FILESTORE:
        yield Place("slurm:zone", "file", names.region(settings))


def _at_google(settings: Settings) -> dict[str, str]:
    emails = (names.account(settings, role) for role in names.ROLES)
    accounts = (f"projects/{settings.project}/serviceAccounts/{email}" for email in emails)
    machines = [names.instance_id(settings, names.controller(settings)),
                *(names.instance_id(settings, login) for login in names.logins(settings))]  # fmt: skip
    disk = [] if settings[SlurmSettings].existing_state_disk else [names.state_disk_id(settings)]
    secret = names.munge_secret_id(settings)
    urls = {
        **{account: f"https://iam.googleapis.com/v1/{account}" for account in accounts},
        **of_compute([*machines, names.address_id(settings), *disk]),
        secret: f"https://secretmanager.googleapis.com/v1/{secret}",
    }
    if settings[SlurmSettings].home_storage == FILESTORE:
        home = names.filestore_id(settings)
        urls[home] = f"https://file.googleapis.com/v1/{home}"
    return urls


def _quotas(settings: Settings) -> Iterator[Use]:
    """Yield the chips of all slices at once, each in its own zone, and the CPUs of the machines."""
    why, wanted = "all nodesets of slurm have", dict[tuple[str, str, bool], int]()
    for nodeset in nodesets(settings):
        zone, amount = nodeset.settings.zone, nodeset.count * nodeset.kind.chips
        for key in (
            ("region", region_of(zone), nodeset.settings.spot),
            ("zone", zone, nodeset.settings.spot),
        ):
            wanted[key] = wanted.get(key, 0) + amount
    for (dimension, place, spot), amount in sorted(wanted.items()):
        yield Use(chips(dimension, place, spot=spot), amount, why)
    desired = settings[SlurmSettings]
    own = cpus_of(desired.controller_machine_type)
    own += desired.login_count * cpus_of(desired.login_machine_type)
    yield Use(cpus(names.region(settings)), own, "controller and login nodes of slurm have")


def _offers(settings: Settings) -> Iterator[Offer]:
    """Yield what the zones of the nodesets have to offer."""
    for nodeset in nodesets(settings):
        image = nodeset.settings.runtime_version or settings[TpuSettings].runtime_version
        for zone in nodeset.places:
            yield Offer(zone, nodeset.kind.name, image)


_ACTING = Acting(
    "Slurm machines' accounts",
    "slurm:accountUsers",
    lambda given: [names.account_id(given, role) for role in names.ROLES],
)
_ROLES = (
    Role(
        "roles/compute.instanceAdmin.v1", "create controller, login nodes and the state disk",
        ("compute.disks.create", "compute.disks.get", "compute.disks.use", "compute.disks.resize",
         "compute.disks.setLabels", "compute.instances.attachDisk", "compute.instances.create",
         "compute.instances.delete", "compute.instances.get", "compute.instances.setLabels",
         "compute.instances.setMachineType", "compute.instances.setMetadata",
         "compute.instances.setServiceAccount", "compute.instances.setTags", "compute.instances.start",
         "compute.instances.stop", "compute.subnetworks.use", "compute.zoneOperations.get"),
    ),
    Role(
        "roles/compute.networkAdmin", "reserve the Slurm controller's internal address",
        ("compute.addresses.createInternal", "compute.addresses.deleteInternal", "compute.addresses.get",
         "compute.addresses.setLabels", "compute.addresses.useInternal"),
    ),
    Role(
        "roles/compute.securityAdmin", "open Slurm's ports",
        ("compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.get",
         "compute.firewalls.update"),
    ),
    Role(
        "roles/secretmanager.admin", "create the secret of munge's key, and let machines read it",
        ("secretmanager.secrets.create", "secretmanager.secrets.delete", "secretmanager.secrets.get",
         "secretmanager.secrets.getIamPolicy", "secretmanager.secrets.setIamPolicy",
         "secretmanager.secrets.update"),
    ),
    Role(
        "roles/iam.serviceAccountAdmin", "create the Slurm machines' accounts and grant their use",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete"),
    ),
    act_as(_ACTING.on, "create machines that run as them"),
    Role(
        "roles/iam.roleAdmin", "create the Slurm controller's custom role",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin",
        "grant Slurm's controller its custom role; let Slurm machines write logs",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/storage.admin", "upload the Slurm machines' program, and let them read it",
        ("storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy", "storage.objects.create",
         "storage.objects.delete", "storage.objects.get"),
    ),
    Role(
        "roles/file.admin", "create the Filestore instance of /home",
        ("file.instances.create", "file.instances.delete", "file.instances.get", "file.instances.update",
         "file.operations.get"),
        setting=f"home_storage={FILESTORE}",
    ),
)  # fmt: skip

LAYER = Layer(
    name="slurm",
    reads=("storage", "network", "tpu"),
    may_read=("builds",),
    settings=SlurmSettings,
    rules=RULES,
    record_rules={NodesetSettings: checked},
    roles=_ROLES,
    grants=access.on_project,
    services=_services,
    providers=GOOGLE,
    outputs=SlurmOutputs,
    accounts=_accounts,
    places=_places,
    prices=price.rows,
    rates=price.rates,
    at_google=_at_google,
    ids={
        "gcp:compute/address:Address": "projects/{project}/regions/{region}/addresses/{name}",
        "gcp:compute/instance:Instance": "projects/{project}/zones/{zone}/instances/{name}",
        "gcp:filestore/instance:Instance": "projects/{project}/locations/{location}/instances/{name}",
        "gcp:secretmanager/secret:Secret": "projects/{project}/secrets/{secretId}",
    },
    hooks=Hooks(
        acting=_ACTING,
        imported=lambda given: {(disk := names.state_disk_id(given)): f"slurm:existingStateDisk: {disk}"},
        quotas=_quotas,
        offers=_offers,
        following=lambda given: f"tpu slurm submit {given.environment} job.sbatch",
        bundle=startup.BUNDLE,
        metrics=watched.METRICS,
        alerts=watched.ALERTS,
    ),
    program=deferred(f"{__package__}.program"),
)
