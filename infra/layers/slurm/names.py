"""Names, ids, paths and ports of the cluster, for its own programs and other layers."""

from __future__ import annotations

from infra.catalog import region_of
from infra.core import names
from infra.layers.slurm.settings import SlurmSettings
from infra.settings.schema import Settings

SLURMCTLD, SLURMD, SLURMDBD, NFS_PORT = 6817, 6818, 6819, 2049
SRUN_PORTS = (61001, 63000)
"""Where srun and salloc are called back: above Linux's range of ports that programs get at random."""
STATE = "/var/lib/slurm-state"
"""Mount point of the state disk: StateSaveLocation, /home where it is exported, MariaDB's files."""
STATE_SAVE, REQUESTS, HOME_EXPORT = f"{STATE}/slurmctld", f"{STATE}/power", f"{STATE}/home"
ETC, BIN = "/etc/slurm", "/opt/slurm/bin"
RESUME, SUSPEND, RESUME_FAILED = (f"{BIN}/{name}" for name in ("resume", "suspend", "resume-failed"))
"""Programs that slurmctld calls; each records what is desired in REQUESTS, and returns."""
STATE_DEVICE = "slurm-state"
"""Name of the state disk on the controller: /dev/disk/by-id/google-slurm-state."""
ROLES = CONTROLLER, LOGIN = ("controller", "login")
"""Values of a machine's metadata `slurm-role`."""
MACHINE_KEY, BUCKET_KEY, BUNDLE_KEY, ZONE_KEY = "tpu-slice", "tpu-bucket", "tpu-bundle", "tpu-zone"
"""Keys of a machine's metadata that programs of TPU hosts read: its name, bucket, bundle and zone."""
ROLE_KEY, PROGRAM_KEY, ENVIRONMENT_KEY = "slurm-role", "slurm-program", "slurm-environment"
STACK_KEY, CONTROLLER_KEY, HOME_KEY = "slurm-stack", "slurm-controller", "slurm-home"
MUNGE_KEY = "slurm-munge"
"""Further keys: of the program `OBJECT SHA256`, of the slices' stack its id, of the controller its address,
of /home SERVER:PATH, of munge's key the full id of its secret.
"""
FILESTORE_SHARE = "home"


def name(settings: Settings) -> str:
    """Return the cluster's name, which is Slurm's ClusterName."""
    return settings[SlurmSettings].name or f"slurm-{settings.environment}"


def zone(settings: Settings) -> str:
    """Return the zone of controller and login nodes; empty where neither it nor a nodeset is given."""
    desired = settings[SlurmSettings]
    return desired.zone or next((nodeset.zone for nodeset in desired.nodesets), "")


def region(settings: Settings) -> str:
    """Return their region."""
    return region_of(zone(settings))


def controller(settings: Settings) -> str:
    """Return the controller's machine, which is Slurm's host name of it, too."""
    return f"{name(settings)}-{CONTROLLER}"


def logins(settings: Settings) -> list[str]:
    """Return the login nodes."""
    return [f"{name(settings)}-{LOGIN}-{number}" for number in range(settings[SlurmSettings].login_count)]


def account_id(settings: Settings, role: str) -> str:
    """Return the id of the account that machines of a role run as."""
    return f"{name(settings)}-{role}"


def account(settings: Settings, role: str) -> str:
    """Return the address of that account."""
    return names.account_email(settings, account_id(settings, role))


def owner(settings: Settings) -> dict[str, str]:
    """Return the owner of the fleet's records that the controller writes."""
    return {"who": account(settings, CONTROLLER), "from": f"slurm {settings.environment}"}


def tag(settings: Settings, role: str) -> str:
    """Return the network tag of a role's machines."""
    return f"{name(settings)}-{role}"


def munge_secret(settings: Settings) -> str:
    """Return the name of the secret that holds munge's key."""
    return f"{name(settings)}-munge"


def munge_secret_id(settings: Settings) -> str:
    """Return the full id of that secret."""
    return f"projects/{settings.project}/secrets/{munge_secret(settings)}"


def state_disk(settings: Settings) -> str:
    """Return the name of the state disk that the stack makes."""
    return f"{name(settings)}-state"


def state_disk_id(settings: Settings) -> str:
    """Return the full id of the state disk, made or given."""
    made = f"projects/{settings.project}/zones/{zone(settings)}/disks/{state_disk(settings)}"
    return settings[SlurmSettings].existing_state_disk or made


def instance_id(settings: Settings, machine: str) -> str:
    """Return the full id of a machine."""
    return f"projects/{settings.project}/zones/{zone(settings)}/instances/{machine}"


def address_id(settings: Settings) -> str:
    """Return the full id of the controller's internal address."""
    return f"projects/{settings.project}/regions/{region(settings)}/addresses/{controller(settings)}"


def filestore(settings: Settings) -> str:
    """Return the name of the Filestore instance of /home."""
    return f"{name(settings)}-home"


def filestore_id(settings: Settings) -> str:
    """Return its full id; an instance of a region for the regional tier."""
    place = region(settings) if settings[SlurmSettings].filestore_tier == "REGIONAL" else zone(settings)
    return f"projects/{settings.project}/locations/{place}/instances/{filestore(settings)}"


def programs(settings: Settings) -> str:
    """Return the folder of the checkpoint bucket for the machines' program, by content."""
    return f"slurm/{name(settings)}"
