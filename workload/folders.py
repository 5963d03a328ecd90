"""Folders that settings name: paths below $DATA_DIR, or gs:// URLs of the mounted checkpoint bucket."""

import os
from pathlib import Path

from workload.errors import ConfigError, Problem
from workload.runs import location

MOUNT = Path("/mnt/checkpoints")
"""Mount point of $CHECKPOINT_BUCKET on hosts and in pods."""
_BUCKET = "gs://"


def of_setting(key: str, name: str, data_dir: str | None = None) -> Path:
    """Return the folder that a setting names.

    Args:
        key: of the setting.
        name: its value: a path, relative to $DATA_DIR where that is set, or gs://BUCKET/FOLDER.
        data_dir: base of relative paths; None: $DATA_DIR.

    Raises:
        ConfigError: a URL that isn't in the mounted bucket.
    """
    if problems := location.of_scheme(key, name):
        raise ConfigError("config", problems)
    if name.startswith(_BUCKET):
        return _mounted(key, name)
    base = os.environ.get("DATA_DIR", "") if data_dir is None else data_dir
    return (_mounted("$DATA_DIR", base) if base.startswith(_BUCKET) else Path(base)) / name


def _mounted(key: str, url: str) -> Path:
    bucket, _, folder = url.removeprefix(_BUCKET).partition("/")
    own = os.environ.get("CHECKPOINT_BUCKET")
    if bucket == own and MOUNT.is_dir():
        return MOUNT / folder
    rule = f"must be in the bucket that is mounted at {MOUNT}, which hosts alone have"
    if own and MOUNT.is_dir():
        rule = f"must be in gs://{own}, the bucket that is mounted at {MOUNT}"
    fix = f"gcloud storage cp -r {url} FOLDER, then that folder; for hosts: tpu data put ENV FOLDER"
    raise ConfigError("config", [Problem(key, url, rule, fix)])
