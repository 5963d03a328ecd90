"""Packages, users and munge's key of a host, each by what makes it the right one: hash, id, secret."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
from collections.abc import Sequence
from pathlib import Path

from workload.host.bucket import Bucket
from workload.host.errors import HostError
from workload.host.secret_variables import access
from workload.host.slurmd import epilog as after_job

ARCHIVE = "slurm.tar.gz"
# The same numbers on the controller (infra/layers/slurm/startup/machine.sh): /home is shared.
_USERS = """\
u munge 64001 "MUNGE"
u slurm 64030 "Slurm"
u statd - "NFS" /var/lib/nfs
u _rpc - "RPC" /run/rpcbind
"""
_PRIVATE = ("etc/munge", "var/lib/munge", "var/log/munge")
_LEAST_KEY_BYTES = 32


def command(*words: str | Path, doing: str, timeout_s: float = 120.0) -> str:
    """Run a program and return its output. Raises HostError with its last line."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{doing}: {error}") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise HostError(f"{doing}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return done.stdout


def packages(bucket: Bucket, bundle: str, root: Path = Path("/"), state: Path = Path("/var/lib/tpu")) -> bool:
    """Unpack a bundle's packages over the image, whose own files win; False where that was done before.

    What an earlier bundle brought makes room first. Raises HostError.
    """
    marker, listed = state / "slurm.bundle", state / "slurm.files"
    if marker.exists() and marker.read_text().strip() == bundle:
        return False
    archive = state / ARCHIVE
    state.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(_blob(bucket, bundle))
    for line in listed.read_text().splitlines() if listed.exists() else ():
        (root / line).unlink(missing_ok=True)
    with tarfile.open(archive) as tar:
        files = [member.name for member in tar if not member.isdir()]
    listed.write_text("".join(f"{name}\n" for name in files if not os.path.lexists(root / name)))
    flags = ("--skip-old-files", "--keep-directory-symlink", "--same-permissions", "--same-owner")
    command(
        "tar",
        "--extract",
        "--gzip",
        f"--file={archive}",
        f"--directory={root}",
        *flags,
        doing="unpacking Slurm",
    )
    archive.unlink()
    marker.write_text(f"{bundle}\n")
    return True


def _blob(bucket: Bucket, bundle: str) -> bytes:
    """Return a bundle's archive of packages, checked by the manifest whose sha256 the bundle's id is."""
    fix = "run 'tpu publish', then 'tpu up ENV slurm'"
    manifest = _object(bucket, f"bundles/manifests/{bundle}", bundle, fix)
    match = re.search(rf"(?m)^([0-9a-f]{{64}})  {re.escape(ARCHIVE)}$", manifest.decode(errors="replace"))
    if match is None:
        raise HostError(f"bundle {bundle} of slurm:bundle has no {ARCHIVE}: {fix}")
    return _object(bucket, f"bundles/blobs/{match[1]}", match[1], fix)


def _object(bucket: Bucket, name: str, sha256: str, fix: str) -> bytes:
    content = bucket.read(name)
    if content is None:
        raise HostError(f"there is no gs://{bucket.name}/{name}: {fix}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise HostError(f"gs://{bucket.name}/{name} doesn't match its sha256: {fix}")
    return content


def users(root: Path = Path("/")) -> None:
    """Make the system's users, with the same ids on every machine of the cluster, and their folders."""
    file = root / "etc/sysusers.d/slurm.conf"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_USERS)
    command("systemd-sysusers", file, doing="making the users munge and slurm")
    for name in _PRIVATE:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        shutil.chown(folder, "munge", "munge")


def epilog(root: Path = Path("/")) -> None:
    """Write the program that slurmd runs after each job."""
    file = root / after_job.FILE.lstrip("/")
    file.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S {after_job.__file__}\n")
    file.chmod(0o755)


def munge(key: bytes, root: Path = Path("/")) -> None:
    """Install munge's key, and start munged with it."""
    file = root / "etc/munge/munge.key"
    changed = not file.exists() or file.read_bytes() != key
    if changed:
        fresh = file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.touch(0o400)
        shutil.chown(fresh, "munge", "munge")
        fresh.write_bytes(key)
        fresh.replace(file)
    verb: Sequence[str] = ("restart",) if changed else ("start",)
    command("systemctl", *verb, "munge.service", doing="starting munged")
    command("sh", "-c", "munge --no-input | unmunge --output=/dev/null", doing="munged answers nothing")


def key(secret: str) -> bytes:
    """Return the newest version of munge's secret. Raises HostError."""
    try:
        value = access(f"{secret}/versions/latest")
    except urllib.error.HTTPError as error:
        why = {
            403: "this host's account may not read it: tpu up ENV slurm",
            404: "it has no version: the controller adds it at its first boot: tpu logs ENV slurm",
        }
        raise HostError(
            f"munge's key, {secret}: HTTP {error.code}: {why.get(error.code, error.reason)}"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise HostError(f"munge's key, {secret}, can't be read: {error}") from None
    if len(value) < _LEAST_KEY_BYTES:
        raise HostError(
            f"munge's key, {secret}, has {len(value)} bytes: munge wants {_LEAST_KEY_BYTES} at least"
        )
    return value
