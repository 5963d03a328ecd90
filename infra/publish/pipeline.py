"""Code of a batch: the workload as a zip, its packages as an archive, and a main file; named by their hash.

Spark, Java and Python are the runtime's. All else comes along, with its hashes checked, so that no image has
to be built and nothing is installed while a batch starts.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

from google.cloud import storage

from infra.core.layer import up_command
from infra.errors import CommandError
from infra.layers.pipeline import facts, paths
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.settings import PipelineSettings
from infra.publish import archive, wheels
from infra.publish.errors import PublishError
from infra.publish.upload import create, storage_errors
from infra.settings.record import record
from infra.settings.schema import Settings
from infra.settings.sources import ROOT, part

LOCK = Path("tools/spark/requirements.txt")
MAIN = """\
import sys

from workload.__main__ import main

sys.exit(main(["preprocess", *sys.argv[1:]]))
"""
_OF_THE_RUNTIME = ("pyspark", "py4j", "setuptools")
_ENTRY = re.compile(r"(?m)^(?=[A-Za-z0-9])")
_DATA = re.compile(r"^[^/]+\.data/(purelib|platlib)/")


def publish(settings: Settings, root: Path = ROOT, *, upload: bool = True) -> int:
    """Put what batches run into the scratch bucket, and its hash into the settings; 0.

    Without `upload` it is built, which fills the cache of wheels, and that is all.

    Raises CommandError where the bucket can't be written, or a wheel can't be had.
    """
    with tempfile.TemporaryDirectory(prefix="tpu-pipeline.") as work:
        try:
            runtime = facts.RUNTIMES[settings[PipelineSettings].runtime_version]
            files = built(Path(work), runtime.python)
            code = identity(files)
            if not upload:
                size = sum(path.stat().st_size for path in files.values()) / (1 << 20)
                print(f"code {code[:12]}…: {size:,.0f} MiB, not sent")
                return 0
            sent = _upload(settings, code, files)
        except PublishError as error:
            raise CommandError(str(error)) from None
    mib = sum(sent.values()) / (1 << 20)
    what = f"{', '.join(sent)} sent, {mib:,.0f} MiB" if sent else "all there already"
    print(f"code {code[:12]}…: gs://{scratch_bucket(settings)}/{paths.CODE}/{code}: {what}")
    if record(settings.environment, "pipeline:code", code, root):
        print(f"Pulumi.{settings.environment}.yaml: pipeline:code is set")
    print(f"next: {up_command('pipeline', settings.environment)}")
    return 0


def built(folder: Path, python: str) -> dict[str, Path]:
    """Build the three files for a runtime's Python ("3.11"): the same bytes for the same tree and lock.

    Raises PublishError.
    """
    main, code, packages = (folder / name for name in ("main.py", "workload.zip", "packages.tar.gz"))
    main.write_text(MAIN, encoding="utf-8")
    shutil.copyfile(wheels.build_workload(folder / "wheel"), code)
    lock = folder / "requirements.txt"
    lock.write_text(without_runtime(part(LOCK).read_text("utf-8")), encoding="utf-8")
    archive.write(packages, unpacked(wheels.locked(lock, python)))
    return {path.name: path for path in (main, code, packages)}


def identity(files: dict[str, Path]) -> str:
    """Return the sha256 of their names and contents."""
    whole = hashlib.sha256()
    for name, path in sorted(files.items()):
        whole.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def without_runtime(lock: str) -> str:
    """Return a lock's entries without those that the runtime has."""
    entries = _ENTRY.split(lock)
    named = ((re.split(r"[=\[ ;<>@]", entry, maxsplit=1)[0].lower(), entry) for entry in entries)
    return "".join(entry for name, entry in named if name not in _OF_THE_RUNTIME)


def unpacked(wheels: list[Path]) -> dict[str, bytes]:
    """Return the files that the wheels put on Python's path, by name."""
    members: dict[str, bytes] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                at = _DATA.sub("", name)
                if not name.endswith("/") and ".data/" not in at:
                    members[at] = packed.read(name)
    return members


def _upload(settings: Settings, code: str, files: dict[str, Path]) -> dict[str, int]:
    """Create what isn't there; the bytes sent, by name."""
    name = scratch_bucket(settings)
    up = up_command("pipeline", settings.environment)
    role = f"roles/storage.objectUser (pipeline:runners; then {up})"
    with storage_errors(name, f"{up}, then this again", role):
        bucket = storage.Client(project=settings.project).bucket(name)
        return {
            file: path.stat().st_size
            for file, path in files.items()
            if create(bucket.blob(f"{paths.CODE}/{code}/{file}"), path)
        }
