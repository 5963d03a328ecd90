"""Folders that settings name: paths below $DATA_DIR, or gs:// URLs of the mounted checkpoint bucket."""

import hashlib
import os
from pathlib import Path

from workload.errors import ConfigError, Problem, StoreError
from workload.runs import location

MOUNT = Path("/mnt/checkpoints")
"""Mount point of $CHECKPOINT_BUCKET on hosts and in pods."""
WEIGHTS = (".json", ".safetensors")
"""Endings of files that hold a model's weights."""
_BUCKET = "gs://"
_PART_BYTES = 1 << 26


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


def downloaded(url: str, endings: tuple[str, ...] = WEIGHTS) -> Path:
    """Download files of a folder by their endings into the cache, once for each set of their generations."""
    from workload.runs.bucket_store import open_bucket  # its client is large

    store = open_bucket(url)
    objects = {
        name: version
        for name, version in store.versions("").items()
        if name.endswith(endings) and "/" not in name
    }
    key = hashlib.sha256(repr((store.url, sorted(objects.items()))).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "tpu-pulumi" / "weights" / key
    folder.mkdir(parents=True, exist_ok=True)
    for name, (generation, size) in objects.items():
        if (path := folder / name).exists():
            continue
        part = path.with_name(f"{name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                for start in range(0, size, _PART_BYTES):
                    file.write(store.read(name, start, min(size, start + _PART_BYTES), generation))
        except OSError as error:
            raise StoreError(f"{part}: can't be written: {error.strerror}\n    fix: make room") from None
        part.replace(path)
    return folder
