"""Names and ids that the storage layer owns and other layers read."""

from __future__ import annotations

from infra.core.names import account_email, fitted
from infra.core.secrets import Reader
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices.names import BLOBS, MANIFESTS

# Folder of the checkpoint bucket for shards of text.
TOKENS = "tokens"


# Folder for text, tokens and weights that people upload, by name.
DATA = "data"


# Folder for what people's own programs save, by run, or by team and job.
JOBS = "jobs"


# Prefixes of the checkpoint bucket that a controller of slices lists, reports of boots and jobs; and those
# that it reads: bundles are published before nodes are created (infra/layers/tpu/published.py).
LISTED, READ = ("boot/", "heartbeats/"), (MANIFESTS, BLOBS)


STATE_KEY = "pulumi-secrets"
# Owner of the account that slices run as.
HOSTS = "the TPU hosts'"


def jobs_folder(namespace: str) -> str:
    """Return the folder of the checkpoint bucket for what a team's own programs save, with a slash."""
    return f"{JOBS}/{namespace}/"


def service_account_email(settings: Settings) -> str:
    """Address of the account that the hosts run as."""
    return account_email(settings, settings[StorageSettings].service_account_id)


def hosts(settings: Settings) -> Reader:
    """Return the hosts' account as a reader of secrets."""
    granted = dict.fromkeys(settings[StorageSettings].secrets, "storage")
    return Reader(f"serviceAccount:{service_account_email(settings)}", granted)


def service_account_id(settings: Settings) -> str:
    """Full id of that account, as its own IAM policy takes it."""
    return f"projects/{settings.project}/serviceAccounts/{service_account_email(settings)}"


def controller_account_email(settings: Settings) -> str:
    """Address of the account that the fleet controller runs as, where there is one."""
    return account_email(settings, settings[StorageSettings].controller_account_id)


def controller_account_id(settings: Settings) -> str:
    """Full id of that account, as its own IAM policy takes it."""
    return f"projects/{settings.project}/serviceAccounts/{controller_account_email(settings)}"


def controller_role_id(settings: Settings) -> str:
    """Return the id of that account's role, without the hyphens that role ids may not have."""
    return str(settings[StorageSettings].controller_account_id).replace("-", "_")


def state_key_id(settings: Settings) -> str:
    """Full id of the key of Pulumi's state, where there is one."""
    storage = settings[StorageSettings]
    ring = f"projects/{settings.project}/locations/{storage.location}/keyRings/{storage.state_key_ring}"
    return f"{ring}/cryptoKeys/{STATE_KEY}"


def controller_bucket(settings: Settings) -> str:
    """Return the bucket of the fleet controller's state, which the hosts' account can't write."""
    return fitted(f"{settings[StorageSettings].bucket_name}-fleet")


def steps_bucket(settings: Settings) -> str:
    """Return the bucket of running jobs' checkpoints, without versions and soft delete."""
    return fitted(f"{settings[StorageSettings].bucket_name}-steps")


def reports(settings: Settings) -> str:
    """Return the condition of what a controller of slices reads of hosts.

    A listing's prefix is an attribute of the request.
    https://cloud.google.com/iam/docs/conditions-attribute-reference
    """
    listing = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
    objects = f"projects/_/buckets/{settings[StorageSettings].bucket_name}/objects"
    read = [f'resource.name.startsWith("{objects}/{prefix}")' for prefix in READ]
    return " || ".join([*read, *(f'{listing}.startsWith("{prefix}")' for prefix in LISTED)])
