"""Munge's key: a secret, whose first version the controller makes; a copy is on the state disk.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets/addVersion
"""

from __future__ import annotations

import base64
import binascii
import os

from infra.google.client import Client, or_none
from infra.layers.slurm import names
from slurm.errors import SlurmError
from slurm.system import System

COPY = f"{names.STATE}/munge.key"
_FILE = "/etc/munge/munge.key"
_SECRETS = "https://secretmanager.googleapis.com/v1"
_BYTES, _LEAST_BYTES, _MOST_BYTES = 128, 32, 1024
# https://github.com/dun/munge/blob/master/src/munged/munged.8.in


def of_controller(system: System, client: Client, secret: str) -> bytes:
    """Return the key; add it where the secret has none, and keep a copy on the state disk.

    The copy is written first: whatever dies or is repeated after that adds the same key.

    Raises:
        SlurmError: secret and disk differ.
        RequestError: the secret can't be read or written.
    """
    stored, copy = read(client, secret), system.path(COPY)
    kept = copy.read_bytes() if copy.exists() else None
    if stored is not None and kept is not None and stored != kept:
        raise SlurmError(
            f"munge's key differs: {COPY} is another one than the newest version of {secret}; no host and no "
            "job would be believed\n"
            f"    fix: where the secret is right: sudo rm {COPY}; else gcloud secrets versions add "
            f"{secret.rpartition('/')[2]} --data-file={COPY}; then sudo systemctl restart "
            "google-startup-scripts"
        )
    key = stored or kept or os.urandom(_BYTES)
    system.write(COPY, key, mode=0o400)
    if stored is None:
        payload = {"payload": {"data": base64.b64encode(key).decode()}}
        client.json("POST", f"{_SECRETS}/{secret}:addVersion", body=payload)
    return key


def read(client: Client, secret: str) -> bytes | None:
    """Return the newest version of the secret; None: it has none yet. Raises RequestError, or SlurmError."""
    answer = or_none(lambda: client.json("GET", f"{_SECRETS}/{secret}/versions/latest:access"))
    if answer is None:
        return None
    try:
        key = base64.b64decode(answer["payload"]["data"], validate=True)
    except (KeyError, TypeError, binascii.Error):
        raise SlurmError(f"{secret}: its newest version holds no key") from None
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise SlurmError(
            f"{secret}: its newest version has {len(key)} bytes; munge takes {_LEAST_BYTES} to {_MOST_BYTES}"
        )
    return key


def install(system: System, key: bytes) -> None:
    """Install the key, and start munge with it. Raises SlurmError."""
    system.folder("/etc/munge", mode=0o700, owner="munge")
    changed = system.write(_FILE, key, mode=0o400, owner="munge")
    system.start("munge.service", again=changed)
