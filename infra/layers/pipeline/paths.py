"""Names and paths of the pipeline."""

from google_facts import regions
from infra.core import names
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage import names as storage_names
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import GcpSettings, Settings

TOKENS = storage_names.TOKENS
"""Folder of the checkpoint bucket: shards, a folder for each run."""
RECORDS, REQUESTS = "pipeline", "pipeline-requests"
"""Folders of the controllers' bucket: records of runs, a folder for each run, and people's requests."""
SUBMIT = "_SUBMIT"
ENTRY = "handle"
"""Entry point of the function, in its main.py."""
ENVIRONMENT, CLUSTER_ENDPOINT = "TPU_ENVIRONMENT", "TPU_CLUSTER_ENDPOINT"
"""Variables of the function, beside TPU_STACK_ID with `train: fleet`; the second with `train: jobset`."""
CODE, FUNCTION = "code", "function"
"""Folders of the scratch bucket: the job's code and packages, and the function's source, by their sha256."""
MOUNT = "/mnt/checkpoints"
"""Mount point of the checkpoint bucket, on hosts and in pods of the queue."""
DATAPROC = "https://dataproc.googleapis.com/v1"
TAG = "tpu-spark"
"""Network tag of Spark's nodes, which connect to each other alone."""
ACCOUNTS = ("spark", "run", "trigger", "build", "view")
"""Last parts of the accounts' ids."""
SPARK, ORCHESTRATOR, TRIGGER, BUILD, VIEW = ACCOUNTS
ACTED_AS = (ORCHESTRATOR, TRIGGER, BUILD)
"""Accounts that whoever brings the layer up makes something run as."""


def name(settings: Settings) -> str:
    """Of the function, its trigger, its sweep and its repository; prefix of the accounts."""
    return settings[PipelineSettings].name


def region(settings: Settings) -> str:
    """Beside the bucket: Spark reads and writes there."""
    return settings[StorageSettings].location


def sweep_region(settings: Settings) -> str:
    """Return the region of the sweep's job, which calls the function by its URL from wherever it is."""
    given = settings[PipelineSettings].schedule_region
    return given or regions.nearest("cloudscheduler", region(settings))


def labels(settings: Settings) -> dict[str, str]:
    """Return the labels of each batch and custom job, as on all resources of the stacks."""
    return {**settings[GcpSettings].default_labels, **names.labels(settings.environment, "pipeline")}


def account_id(settings: Settings, which: str) -> str:
    """Return the id of one of its accounts."""
    return f"{name(settings)}-{which}"


def owner(which: str) -> str:
    """Return the component whose account that is, in words."""
    return f"the pipeline's {which}"


def account(settings: Settings, which: str) -> str:
    """Return the address of one of its accounts."""
    return names.account_email(settings, account_id(settings, which))


def code_folder(settings: Settings) -> str:
    """URL of the job's code and packages."""
    return f"gs://{scratch_bucket(settings)}/{CODE}/{settings[PipelineSettings].code}"


def function_id(settings: Settings) -> str:
    """Full id of the function."""
    return f"projects/{settings.project}/locations/{region(settings)}/functions/{name(settings)}"


def sources_bucket(settings: Settings, number: str) -> str:
    """Return the bucket into which Cloud Functions copies the sources that it builds in the region.

    It comes with the region's first function: https://cloud.google.com/functions/docs/building.
    """
    return f"gcf-v2-sources-{number}-{region(settings)}"


def batches(settings: Settings) -> str:
    """URL of the region's batches."""
    return f"{DATAPROC}/projects/{settings.project}/locations/{region(settings)}/batches"


def record(run: str) -> str:
    """Return the object of the controllers' bucket that is the record of a run."""
    return f"{RECORDS}/{run}/run.json"


def request(run: str) -> str:
    """Return the object of the controllers' bucket by which people cancel or retry a run."""
    return f"{REQUESTS}/{run}.json"
