"""Where the pipeline finds and leaves what it works on."""

from infra.core import names
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage import names as storage_names
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import GcpSettings, Settings

TOKENS, RECORDS = storage_names.TOKENS, "pipeline"
"""Folders of the checkpoint bucket: shards, and records of runs, a folder for each run."""
SUBMIT = "_SUBMIT"
RUN = "run-of-pipeline"
TRAINING = "name-of-training"
FOLDER = "folder-of-shards"
"""What stands for a run's name, for that of its slice or job, and for the folder of its shards in the
checkpoint bucket, until the workflow fills them in: themselves names that Google takes. Training that failed
for good is started again under another name, since its last heartbeat stays.
"""
CODE = "code"
"""Folder of the scratch bucket: the job's code and packages, by their sha256."""
MOUNT = "/mnt/checkpoints"
"""Where hosts, and pods of the queue, have the checkpoint bucket."""
TAG = "tpu-spark"
"""Network tag of Spark's nodes, which talk to one another alone."""
ACCOUNTS = ("spark", "run", "trigger", "check", "build", "view")
SPARK, ORCHESTRATOR, TRIGGER, CHECK, BUILD, VIEW = ACCOUNTS
"""Last parts of the accounts' ids."""


def name(settings: Settings) -> str:
    """Of the workflow, the trigger, the schedule, the function and the repository; prefix of the accounts."""
    return settings[PipelineSettings].name


def region(settings: Settings) -> str:
    """Beside the bucket: Spark reads and writes there."""
    return settings[StorageSettings].location


def labels(settings: Settings) -> dict[str, str]:
    """What each batch and custom job carries, and its line of the bill: as all that the stacks make."""
    return {**settings[GcpSettings].default_labels, **names.labels(settings.environment, "pipeline")}


def account_id(settings: Settings, which: str) -> str:
    """The id of one of its accounts."""
    return f"{name(settings)}-{which}"


def account(settings: Settings, which: str) -> str:
    """The address of one of its accounts."""
    return names.account_email(settings, account_id(settings, which))


def code_folder(settings: Settings) -> str:
    """URL of the job's code and packages."""
    return f"gs://{scratch_bucket(settings)}/{CODE}/{settings[PipelineSettings].code}"


def workflow_id(settings: Settings) -> str:
    """Full id of the workflow."""
    return f"projects/{settings.project}/locations/{region(settings)}/workflows/{name(settings)}"


def record(run: str) -> str:
    """The object of the checkpoint bucket with all that is known of a run."""
    return f"{RECORDS}/{run}/run.json"
